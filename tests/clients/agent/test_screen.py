"""The agent's status screen, on a real pseudo-terminal, as pyte shows it."""

import fcntl
import os
import pty
import signal
import socket
import struct
import subprocess
import termios
import threading
import unittest

import pyte

from harness import PROGRAM, Service, ask, credential, environment, eventually

HOST = "screen.culvert.localhost"


class Terminal:
    """A program on a pseudo-terminal, whose foreground job it is."""

    def __init__(self, *arguments, columns=80, rows=24, **variables):
        self.screen = pyte.Screen(columns, rows)
        self.stream = pyte.ByteStream(self.screen)
        self.received = b""
        self.lock = threading.Lock()
        self.master, slave = pty.openpty()
        self.resize(columns, rows)
        self.before = termios.tcgetattr(slave)
        self.slave = slave

        def take():
            os.setsid()
            fcntl.ioctl(slave, termios.TIOCSCTTY, 0)

        self.program = subprocess.Popen(
            [PROGRAM, *arguments],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            preexec_fn=take,
            env=environment(TERM="xterm-256color", TZ="UTC", **variables),
        )
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        while True:
            try:
                data = os.read(self.master, 65536)
            except OSError:
                return
            with self.lock:
                self.received += data
                self.stream.feed(data)

    def resize(self, columns, rows):
        # The program draws as soon as it knows the new size.
        with self.lock:
            self.screen.resize(rows, columns)
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def lines(self):
        with self.lock:
            return [line.rstrip() for line in self.screen.display]

    def shows(self, *texts):
        """Waits until the screen shows every text."""

        def check():
            lines = self.lines()
            return all(any(text in line for line in lines) for text in texts) and lines

        try:
            return eventually(texts, check)
        except AssertionError as error:
            raise AssertionError("\n".join([str(error), *self.lines()])) from None

    def sent(self, data, after=0):
        """Waits until the program has sent these bytes; where they are."""

        def check():
            with self.lock:
                return self.received.find(data, after) + 1

        return eventually(data, check) - 1

    def settings(self):
        return termios.tcgetattr(self.slave)

    def ends(self):
        code = self.program.wait(60)
        eventually("the settings are restored", lambda: self.settings() == self.before)
        self.sent(b"\x1b[?1049l")
        return code

    def close(self):
        self.program.kill()
        self.program.wait()
        os.close(self.slave)


class Screen(unittest.TestCase):
    def setUp(self):
        self.service = Service()
        self.addCleanup(self.service.stop)
        self.token = credential()

    def start(self, *more, columns=80, rows=24, port=None, host=HOST, **variables):
        upstream = str(port or self.service.port)
        terminal = Terminal(
            "http", upstream, "--url", f"http://{host}", "--inspect-addr", "127.0.0.1:0", *more,
            columns=columns, rows=rows, CULVERT_AUTHTOKEN=self.token, **variables,
        )
        self.addCleanup(terminal.close)
        return terminal

    def test_the_screen_shows_the_agent_and_its_requests(self):
        terminal = self.start("--region", "eu")
        lines = terminal.shows("Session      online", f"Forwarding   http://{HOST}", "No requests yet")
        self.assertTrue(lines[0].startswith("culvert") and lines[0].endswith("Ctrl+C to stop"))
        for label in ["Server", "Account", "Version", "Latency", "Web page     http://127.0.0.1:"]:
            terminal.shows(label)
        self.assertEqual(ask(HOST, "/first?x=1")[0], 200)
        terminal.shows("GET     /first?x=1", "200 OK", "total     open      1m/s")
        # What a stranger sends cannot move the cursor, change the title or the colours.
        with socket.create_connection(os.environ["CULVERT_HTTP"].split(":")) as raw:
            raw.sendall(f"GET /%1b[31m\x9b31m HTTP/1.1\r\nhost: {HOST}\r\nconnection: close\r\n\r\n".encode("latin-1"))
            while raw.recv(65536):
                pass
        self.assertEqual(ask(HOST, "/last")[0], 200)
        terminal.shows("GET     /last")
        with terminal.lock:
            self.assertNotIn(b"\x9b31m", terminal.received)
        terminal.program.send_signal(signal.SIGINT)
        self.assertEqual(terminal.ends(), 0)

    def test_it_fits_narrow_terminals_and_follows_their_size(self):
        terminal = self.start(columns=40, rows=20)
        terminal.shows("Session      online", "→ http://localhost:")
        self.assertEqual(ask(HOST, "/narrow")[0], 200)
        terminal.shows("GET  /narrow")
        terminal.resize(100, 30)
        terminal.program.send_signal(signal.SIGWINCH)
        terminal.shows("GET     /narrow", "200 OK", " → http://localhost:")
        terminal.resize(20, 5)
        terminal.program.send_signal(signal.SIGWINCH)
        terminal.shows("Session      online")
        terminal.program.terminate()
        self.assertEqual(terminal.ends(), 0)

    def test_without_colour_there_is_none(self):
        terminal = self.start(NO_COLOR="1")
        terminal.shows("Session      online")
        self.assertEqual(ask(HOST, "/")[0], 200)
        terminal.shows("200 OK")
        with terminal.lock:
            self.assertNotRegex(terminal.received, rb"\x1b\[[0-9;]*3[0-9]")
        coloured = self.start(host="other.culvert.localhost")
        coloured.shows("Session      online")
        with coloured.lock:
            self.assertRegex(coloured.received, rb"\x1b\[[0-9;]*3[0-9]")

    def test_a_suspended_agent_gives_the_terminal_back(self):
        terminal = self.start()
        terminal.shows("Session      online")
        self.assertNotEqual(terminal.settings(), terminal.before)
        terminal.program.send_signal(signal.SIGTSTP)
        left = terminal.sent(b"\x1b[?1049l")
        eventually("it is stopped", lambda: os.waitid(os.P_PID, terminal.program.pid, os.WSTOPPED | os.WNOHANG))
        self.assertEqual(terminal.settings(), terminal.before)
        terminal.program.send_signal(signal.SIGCONT)
        terminal.sent(b"\x1b[?1049h", left)
        terminal.shows("Session      online")
        terminal.program.terminate()
        self.assertEqual(terminal.ends(), 0)

    def test_problems_are_shown(self):
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        terminal = self.start(port=port)
        terminal.shows("Session      online")
        self.assertEqual(ask(HOST, "/down")[0], 502)
        terminal.shows("GET     /down", "502 Bad Gateway", "Problem      http://localhost:")
        # A refusal ends the agent, and the message is on the terminal that is left.
        refused = Terminal("http", "80", CULVERT_AUTHTOKEN="wrong")
        self.addCleanup(refused.close)
        self.assertEqual(refused.program.wait(60), 1)
        refused.shows("culvert: the server rejected the agent")

    def test_a_log_on_standard_output_replaces_the_screen(self):
        terminal = self.start("--log", "stdout", "--log-format", "logfmt")
        terminal.sent(b"lvl=info msg=\"online")
        with terminal.lock:
            self.assertNotIn(b"\x1b[?1049h", terminal.received)
        dumb = Terminal("http", str(self.service.port), CULVERT_AUTHTOKEN=self.token, COLUMNS="80")
        self.addCleanup(dumb.close)
        dumb.shows("Session      online")


if __name__ == "__main__":
    unittest.main()
