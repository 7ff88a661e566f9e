"""A Python for tests that starts instantly: asks the process of forking/server.py to fork, and ends as the fork does.

It takes words, working directory, environment and standard streams as Python does, hands signals on, and is what
`sys.executable` names in the fork, so that whatever that starts is forked too. Where a fork would not be the same
(server.py says when), the real Python takes this process's place.
"""

import json
import os
import signal
import socket
import sys
from contextlib import suppress

HANDED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def main() -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        server.connect(os.path.join(os.path.dirname(os.path.abspath(__file__)), "socket"))
        socket.send_fds(server, [b"."], [0, 1, 2])
        for each in HANDED_ON:
            if signal.getsignal(each) is not signal.SIG_IGN:
                signal.signal(each, lambda number, _: server.sendall(b"%d\n" % number))
        request = {
            "executable": os.path.abspath(__file__),
            "words": sys.argv[1:],
            "folder": os.getcwd(),
            "environment": dict(os.environ),
            "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
            "ignored": [each for each in HANDED_ON if signal.getsignal(each) is signal.SIG_IGN],
        }
        server.sendall(json.dumps(request).encode() + b"\n")
        answer = server.makefile().readline().strip()
    if answer == "real":
        os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
    code = int(answer or 1)  # nothing: the server is gone
    if code < 0:
        with suppress(OSError):  # of SIGKILL
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


if __name__ == "__main__":
    main()
