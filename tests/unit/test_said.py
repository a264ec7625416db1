"""What a server remembers of its own last words to owners."""

from precad.common.aggregator.training.said import Said
from precad.common.identifiers import ClientId
from precad.protos import precad_pb2 as pb

A, B = ClientId("ward-0"), ClientId("ward-1")


def word(number: int) -> pb.Signed:
    """Some message."""
    return pb.Signed(body=b"%d" % number)


def test_the_last_word_of_each_kind_is_known_for_the_owner_that_heard_it() -> None:
    said = Said()
    said.note(A, "opening", word(1))
    said.note(A, "statement", word(2))
    assert said.knows(A, "opening", word(1))
    assert said.knows(A, "statement", word(2))
    # Neither of another kind, nor of another owner.
    assert not said.knows(A, "opening", word(2))
    assert not said.knows(A, "statement", word(1))
    assert not said.knows(B, "opening", word(1))


def test_only_the_last_word_is_known() -> None:
    said = Said()
    said.note(A, "statement", word(1))
    said.note(A, "statement", word(2))
    assert not said.knows(A, "statement", word(1))
    assert said.knows(A, "statement", word(2))
    assert not said.knows(A, "opening", pb.Signed())
