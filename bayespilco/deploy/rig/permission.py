"""Permission to start: not in a helper process, and with a certificate only what the certificate calls a GO.

The certificate is `certificate.json`, as `bayespilco check` and `bayespilco learn` write it. It names its controller by
a fingerprint, so that no other controller can run under it.
"""

import json
import multiprocessing
from pathlib import Path

from bayespilco.deploy.rig.protocols import Agent


def require_main(what: str) -> None:
    """End a helper process that is about to run the user's script a second time.

    A helper process imports the script that it helps. Without `if __name__ == "__main__":` that runs the whole script
    again, and two processes would move one plant.
    """
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise SystemExit(
            f"A helper process was about to {what} as well, and has ended. Put what the script does under "
            '`if __name__ == "__main__":`, because helper processes import the script.'
        )


def require_go(path: Path | str, agent: Agent) -> None:
    """Refuse an agent (a ValueError, before the plant moves) unless its certificate is a GO.

    An agent without a fingerprint, such as random actions, promises nothing, and needs no certificate.
    """
    fingerprint = getattr(agent, "fingerprint", None)
    if fingerprint is None:
        return
    try:
        certificate = json.loads(Path(path).read_text(encoding="utf-8"))
        go, sentence, controller = (certificate[name] for name in ("go", "sentence", "controller"))
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"The rig needs a certificate, and {path} cannot be read as one: {error}.") from error
    if controller != fingerprint:
        raise ValueError(f"{path} is the certificate of another controller. Make it again with `bayespilco check`.")
    if go is not True:
        raise ValueError(f"The rig does not start. {sentence}")
