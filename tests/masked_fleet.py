"""A masked run for tests: sites with their machines, and a driver that checks nothing but carries out."""

import hashlib

import numpy as np

from fedgc.errors import FedgcError
from fedgc.messages import (
    Add,
    Begin,
    Close,
    Codeword,
    Continue,
    Failed,
    Held,
    Joined,
    Lost,
    Open,
    Published,
    Refuse,
    Reveal,
    Roster,
    Skip,
    Survivors,
    Take,
    Tick,
    Uncover,
    Unmask,
    Work,
)
from fedgc.round.masked.key_agreement import KeyAgreement
from fedgc.run.machine import Append, Apply, Chose, Finished
from fedgc.secagg import RingSum, Terms
from fedgc.secagg.keystream import Strand
from fedgc.sim.clock.interfaces import Finding
from fedgc.sim.clock.reference_client import ReferenceClient
from tests.config_of import config_of
from tests.tuned import tuned_run

SIZE = 9
STEPS = ("work", "reveal", "sign", "open")


def digest_of(*words):
    return hashlib.sha256(repr(words).encode()).digest()


class Fleet:
    """Sites and a driver that executes the run's outputs, one client message at a time."""

    def __init__(self, party, count, **settings):
        self.party = party(count)
        base = {"rounds": 3, "min_clients": count, "secrecy": "masked", "federation": "all.fed"}
        self.config = config_of(
            {"work": "coded", **base, "deadline_s": 100, "upload_deadline_s": 50, **settings}
        )
        self.now = 0.0
        self.log, self.rows, self.means, self.unsent = [], [], [], []
        self.away, self.ring, self.finished = set(), None, None
        self.summed, self.added = [], []  # of each sum that was had: the model, and whose vectors are in it
        self.updates, self.weights, self.vectors = {}, {}, {}
        self.shared = ()  # names of chunks that every site can load; else each has two private ones
        self.step_s = dict.fromkeys(self.party.clients, 0.1)
        self.workers = {client: ReferenceClient(client) for client in self.party.clients}
        self.models = {0: digest_of("model")}  # digests, by version
        self.given = {}  # client and model -> the packets for which it gave shares
        self.restart_server()

    def restart_server(self, state=None):
        """Start a new process, from a checkpoint if given."""
        key_agreement = KeyAgreement(
            self.party.federation, Terms(SIZE, self.config.shape, bytes(32)), 20.0, lambda: 0.0
        )
        self.run = tuned_run(self.config, now=self.now, size=SIZE, key_agreement=key_agreement, resume=state)
        self.unsent, self.ring, self.adding, self.away = [], None, [], set(self.party.clients)
        self.publish(self.run.version)

    def publish(self, version):
        self.model = self.models[version]
        self.say(Published(self.now, version, self.model))

    def join(self, *clients):
        for client in clients or self.party.clients:
            self.away.discard(client)
            at = self.party.clients.index(client)
            names = self.shared or [f"chunk {at}-{half}" for half in range(2)]
            digest = "same" if self.shared else ""
            self.say(Joined(self.now, client, True, tuple(Held(name, 1, digest) for name in names)))
            self.say(self.party.enrolled(client, self.now))

    def lose(self, client):
        self.away.add(client)
        self.workers[client].restart(keeps=False)
        self.unsent = [each for each in self.unsent if each.client != client]
        self.say(Lost(self.now, client))

    def say(self, event):
        outputs = self.run.handle(event)
        for output in outputs:
            self.log.append(output)
            self.hear(output)
        for applied in [each for each in outputs if isinstance(each, Apply)]:
            self.models[applied.version] = digest_of("model", applied.version, len(self.means))
            self.publish(applied.version)

    def hear(self, output):
        match output:
            case Add(client=client, round=round_):
                self.ring = self.ring or RingSum(self.party.federation.quantizer, SIZE)
                self.ring.add(self.vectors.pop((client, round_)))
                self.adding.append(client)
            case Uncover(round=round_, masks=masks):
                self.ring.remove([Strand(*mask) for mask in masks])
                self.means.append(self.ring.mean())
                self.summed.append(self.model)
                self.added.append((round_, self.adding))
            case Append(row=row):
                self.rows.append(row)
                self.ring, self.adding = None, []
            case Finished():
                self.finished = output
            case Close(client=client):
                self.workers[client].handle(output)
            case Refuse() | Chose() | Apply():
                pass
            case _ if output.client not in self.away:
                self.unsent.append(output)

    def answer(self, command):
        """Return the client's answer to a command, or nothing."""
        match command:
            case Work() | Continue() | Skip() | Take():
                self.workers[command.client].handle(command)
                return self.worked(self.workers[command.client])
            case Reveal(kind="masked"):
                self.workers[command.client].handle(command)
                return [self.codeword(command)]
            case Begin() | Open() | Roster() | Survivors() | Unmask():
                said = self.party.answer(command, self.now, self.now, self.model)
                if isinstance(command, Unmask):
                    of = self.party.machines[command.client].state.turn.model
                    self.given.setdefault((command.client, of), set()).add(command.packet)
                return [said] if said else []
        return []

    def worked(self, at):
        """Let a client do all its work, and report."""
        said = []
        while not at.idle:
            told = at.due()
            if told is None:
                at.start()
                told = at.finish(at.left * self.step_s[at.name])
            samples = len(at.names) if at.local else 1
            said.append(told.event(self.now, at.name, samples, Finding(squared_norm=0.0)))
        return said

    def codeword(self, reveal):
        client, round_ = reveal.client, reveal.round
        rng = np.random.default_rng([round_, self.party.clients.index(client)])
        self.updates[client, round_] = rng.uniform(-0.9, 0.9, SIZE).astype(np.float32)
        self.weights[client, round_] = 10 + self.party.clients.index(client)
        update, weight = self.updates[client, round_], self.weights[client, round_]
        self.vectors[client, round_] = self.party.vector(client, update, weight)
        return Codeword(self.now, client, round_, 0, 0.5, 4 * reveal.ring.words)

    def step(self):
        """Send a due Tick, as the driver does; else let one client answer, or time pass."""
        if self.unsent and self.run.next_tick > self.now:
            self.now += 0.01
            command = self.unsent.pop(0)
            try:
                said = self.answer(command)
            except FedgcError as error:
                said = [Failed(self.now, command.client, command.round, str(error))]
            for event in said:
                self.say(event)
            return
        self.now = max(self.now, self.run.next_tick)
        self.say(Tick(self.now))

    def drive(self, until=lambda fleet: False, most=3000):
        for _ in range(most):
            if self.finished or until(self):
                return
            self.step()
        raise AssertionError(f"it did not end: {self.run.round and self.run.round.state}")

    def true_mean(self, round_, clients):
        weights = {client: self.weights[client, round_] for client in clients}
        total = sum(weights.values())
        return sum(weights[d] * self.updates[d, round_].astype(np.float64) for d in clients) / total

    def check(self, which, round_, clients):
        mean, weight = self.means[which]
        assert weight == sum(self.weights[client, round_] for client in clients)
        bound = self.party.federation.quantizer.bound(len(clients), weight)
        assert np.abs(mean - self.true_mean(round_, clients)).max() <= bound

    def outcomes(self):
        return [row.outcome for row in self.rows]

    def count(self, kind):
        return sum(isinstance(each, kind) for each in self.log)
