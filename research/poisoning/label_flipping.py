"""Label flipping (Fung, Yoon and Beschastnikh 2020)."""

from research.poisoning.attack import ATTACKS, Attack, Images, Labels


@ATTACKS.register("label-flipping")
class LabelFlipping(Attack):
    """Every label becomes the next one."""

    def poison(
        self, x: Images, y: Labels, number: int, classes: int
    ) -> tuple[Images, Labels]:
        """The next label for each record."""
        del number
        return x, (y + 1) % classes

    def goal(self, x: Images, y: Labels, classes: int) -> tuple[Images, Labels]:
        """All records, with the next label."""
        return x, (y + 1) % classes
