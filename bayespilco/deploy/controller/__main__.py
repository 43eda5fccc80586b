"""`python -m bayespilco.deploy.controller FILE`; see `timing`."""

from bayespilco.deploy.controller import main

main()
