"""Settings of the dealer's process."""

from precad.common.settings import Address, Settings


class DealerSettings(Settings):
    """The dealer's settings."""

    listen: Address
