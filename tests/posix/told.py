"""Processes that do what they are told, one thing after the other."""

import os
import pickle
import subprocess
import sys


def serve(worker, refused):
    """In such a process: calls the methods of `worker` that it is told, until nobody tells it any more. What `refused`
    gives of a method's name, its arguments and the error that it has raised is the answer then."""
    while True:
        try:
            name, arguments = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        try:
            answer = getattr(worker, name)(*arguments)
        except Exception as error:
            answer = refused(name, arguments, error)
        pickle.dump(answer, sys.stdout.buffer)
        sys.stdout.buffer.flush()


class Process:
    """One that runs a program, which is to `serve`, with a library preloaded if one is given."""

    def __init__(self, name, program, arguments, preload=""):
        environment = dict(os.environ, LD_PRELOAD=preload) if preload else None
        self.name = f"{name} (preloaded)" if preload else name
        self.child = subprocess.Popen(
            [sys.executable, program, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
        )

    def ask(self, name, *arguments):
        """Has it call a method, and gives its answer; raises it, if it is an exception."""
        pickle.dump((name, arguments), self.child.stdin)
        self.child.stdin.flush()
        answer = pickle.load(self.child.stdout)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def end(self):
        self.child.stdin.close()
        self.child.wait(timeout=30)
