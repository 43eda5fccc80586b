"""`bayespilco.deploy.controller` under its name in version 0.1, with the command that times a controller.

python -m bayespilco.controller FILE
"""

from bayespilco.deploy.controller import *  # noqa: F403
from bayespilco.deploy.controller import main

if __name__ == "__main__":
    main()
