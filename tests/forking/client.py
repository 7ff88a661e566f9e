"""A Python for tests that starts instantly: asks the process of forking/server.py to fork, and ends as the fork does.

It takes words, working directory, environment and standard streams as Python does, hands signals on, and is what
`sys.executable` names in the fork, so that whatever that starts is forked too. Where a fork would not be the same
(server.py says when), the real Python takes this process's place.
"""

import _signal as signal  # Python's own modules around these two, and json, take twice as long to load as the rest
import _socket as socket
import marshal
import os
import sys

HANDED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def main() -> None:
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    server.connect(os.path.join(os.path.dirname(os.path.abspath(__file__)), "socket"))
    streams = b"".join(number.to_bytes(4, sys.byteorder) for number in (0, 1, 2))
    server.sendmsg([b"."], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, streams)])
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, HANDED_ON)  # a signal comes after the request, never before it
    request = {
        "executable": os.path.abspath(__file__),
        "words": sys.argv[1:],
        "folder": os.getcwd(),
        "environment": dict(os.environ),
        "blocked": sorted(blocked),
        "ignored": [each for each in HANDED_ON if signal.getsignal(each) == signal.SIG_IGN],
    }
    server.sendall(marshal.dumps(request).hex().encode() + b"\n")
    for each in HANDED_ON:
        if signal.getsignal(each) != signal.SIG_IGN:
            signal.signal(each, lambda number, _: server.sendall(b"%d\n" % number))
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    answer = b""
    while not answer.endswith(b"\n") and (more := server.recv(64)):
        answer += more
    server.close()
    if answer == b"real\n":
        os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
    code = int(answer or 1)  # nothing: the server is gone
    if code < 0:
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


if __name__ == "__main__":
    main()
