"""`python -m precad` is `precad`."""

from precad.cli.main import main

if __name__ == "__main__":
    main()
