"""`python -m nest_ssl`: the same as `nest-ssl`."""

from nest_ssl.cli import main

main()
