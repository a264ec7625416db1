"""`python -m precad` is `precad`."""

from precad.cli.start import main

if __name__ == "__main__":
    main()
