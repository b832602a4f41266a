"""stepd, in the ways that users have it."""
import os

from peers import base


class Stepd(base.Peer):
    name, ours, extra = "stepd", True, ()

    def command(self, job):
        binary = os.environ.get("STEPD", os.path.join(base.TOP, "build", "release", "stepd"))
        self.settings = " ".join(self.extra) or "defaults"
        return [binary, "serve", f"bench={job.model}", "--port", str(job.port), "--no-access-log", "--max-sequences",
                str(job.slots), *self.extra], {}


class Int8(Stepd):
    name, extra = "stepd int8", ("--precision", "int8")


class Avx2(Stepd):
    name, extra = "stepd avx2", ("--isa", "avx2")


class Plain(Stepd):
    """Every token by a step of its own: what the loads' texts, which go on past their end and repeat themselves, spare by guesses."""
    name, extra = "stepd plain", ("--speculative", "none")


KINDS = (Stepd, Plain, Int8, Avx2)
