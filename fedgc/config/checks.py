"""Checks for settings that contradict each other."""

from typing import Final

from fedgc.aggregators import MIXED_RANKS, PLAIN, AggregationRule, rule_named
from fedgc.codecs import EXACT
from fedgc.config.data_settings import FRAME
from fedgc.config.fields import AUTO
from fedgc.config.names import FIELDS
from fedgc.config.pins import parse_pins
from fedgc.config.settings import Settings
from fedgc.errors import BadSetting
from fedgc.gates import Measure
from fedgc.plugins import load

Values = dict[str, object]  # of settings, where no others are possible

MASKED: Final[Values] = {  # of masked sums
    "client.app": "fedgc", "links.codec": EXACT, "data.placement": "private", "code.name": FRAME,
}  # fmt: skip
OF_CLIENTS: Final[Values] = {"work": "local", "secrecy": "open", "client.app": "fedgc"}  # for single updates
WHOLE: Final[Values] = {"links.fragments": 1, "site.gateway": ""}
OWN_DATA: Final[Values] = {"work": "local", "client.app": "fedgc", "data.placement": "private"}
LEAST_NOISE: Final = 0.05  # of records: with less one step spends some 300, and its accounting takes memory


Row = tuple[str, object, object, str]  # a setting's key and value, whether it is possible, what is needed


def _must_hold(config: Settings, why: str, values: Values, *rows: Row) -> None:
    """Raise BadSetting for the first setting that is not possible with another one, which `why` names."""
    of_values = [
        (key, seen := getattr(config, FIELDS[key]), seen == needed, needed) for key, needed in values.items()
    ]
    for key, seen, is_possible, needed in (*of_values, *rows):
        if not is_possible:
            saw, needs = ("none" if each == "" else each for each in (seen, needed))
            raise BadSetting(f"setting {key}: saw {saw}, needed {needs} with {why}")


def _no_momentum(config: Settings, why: str) -> Row:
    momentum = config.shared_momentum
    return "optimizer.shared-momentum", momentum, momentum in (AUTO, "off"), f"off or auto{why}"


def check_secrecy(config: Settings, gate: str, measure: Measure) -> None:
    """Raise BadSetting if masked sums are impossible with these settings."""
    if config.secrecy == "open":
        return
    _must_hold(config, "secrecy = masked", MASKED)
    if not config.federation:
        raise BadSetting("setting federation: saw none, needed a descriptor's file with secrecy = masked")
    if measure == "gradient":
        raise BadSetting(
            f"setting gate.name: saw {gate}, which weighs gradients, "
            "needed one that does not, with secrecy = masked"
        )
    if config.lockstep == "off":
        raise BadSetting("setting gate.lockstep: saw off, needed on or auto with secrecy = masked")


def check_aggregator(config: Settings) -> None:
    """Raise BadSetting if the rule needs single updates, but the server only receives sums."""
    if config.aggregator in (AUTO, PLAIN):
        return
    why = "of which the server receives the sum" if config.secrecy == "masked" else ""
    if config.work == "coded" and config.client_app == "fedgc":
        why = "whose codewords are sums of several updates"
    if why:
        kind = "secrecy = masked" if config.secrecy == "masked" else "work = coded"
        raise BadSetting(
            f"setting aggregation.rule: saw {config.aggregator}, needed {PLAIN} or auto with {kind}, {why}"
        )


def check_mixed_ranks(config: Settings) -> None:
    """Raise BadSetting if factors are to be mixed in a way that their products do not follow."""
    if config.aggregator != MIXED_RANKS:
        return
    _must_hold(
        config,
        MIXED_RANKS,
        {
            "links.codec": EXACT,
            "links.download-codec": EXACT,
            "links.fragments": 1,
            "optimizer.server": "sgd",
            "optimizer.server-learning-rate": 1,
            "optimizer.server-momentum": 0,
        },
        ("script", config.script, bool(config.script), "a script, whose models have adapters"),
    )


def check_samples(config: Settings) -> None:
    """Raise BadSetting if samples are fixed for clients where they do not weight single updates."""
    if parse_pins(config.samples):
        _must_hold(config, "aggregation.samples", OF_CLIENTS)


def check_privacy(config: Settings, gate: str, measure: Measure) -> None:
    """Raise BadSetting if client-level differential privacy does not hold with these settings."""
    if not config.is_private:
        return
    _must_hold(
        config,
        "privacy.noise or privacy.epsilon",
        OWN_DATA | WHOLE,
        (
            "secrecy",
            config.secrecy,
            config.secrecy == "open",
            "open (a descriptor has the noise of masked runs)",
        ),
        ("aggregation.rule", config.aggregator, config.aggregator == AUTO, "auto (the noised mean)"),
        ("aggregation.samples", config.samples, not config.samples, "none (all clients count alike)"),
        _no_momentum(config, " (it tells the mean steps of the clients)"),
        ("gate.name", gate, measure == "none", "a gate without a measure, such as every or pace,"),
        ("validate.best", config.best, not config.best, "none (it would tell figures without noise)"),
    )


def check_records(config: Settings, gate: str, *, reads_losses: bool) -> None:
    """Raise BadSetting if record-level differential privacy does not hold with these settings."""
    if config.privacy_unit != "record":
        return
    if not config.protects_records:
        raise BadSetting("setting privacy.unit: saw record, needed privacy.epsilon or privacy.noise with it")
    noise = config.privacy_noise
    _must_hold(
        config,
        "privacy.unit = record",
        OWN_DATA | {"privacy.clip-quantile": 0, "site.gateway": ""},
        ("script", config.script, not config.script, "a task, whose gradients fedgc computes,"),
        ("gate.name", gate, not reads_losses, "a gate that reads no losses, which have no noise,"),
        ("gate.lockstep", config.lockstep, config.lockstep != "off", "on or auto"),
        ("privacy.noise", noise, noise == AUTO or noise >= LEAST_NOISE, f"at least {LEAST_NOISE}, or auto,"),
        ("validate.best", config.best, not config.best, "none (it would tell figures without noise)"),
    )


def check_code(config: Settings) -> None:
    """Raise BadSetting if the code is unknown, or if no chunk has enough replicas for its blocks."""
    if config.code != FRAME:
        if config.work == "local":
            raise BadSetting(f"setting code.name: saw {config.code}, needed work = coded with it")
        load("fedgc.codes", config.code, "setting code.name")
    blocks, replicas = config.blocks, config.replicas
    if isinstance(blocks, int) and isinstance(replicas, int) and blocks > replicas:
        raise BadSetting(f"setting code.blocks: saw {blocks}, needed at most code.replicas ({replicas})")


def check_gate(config: Settings, budget: float | None) -> None:
    """Raise BadSetting if the gate's bounds contradict each other."""
    if 0 < config.max_gap < config.min_gap:
        raise BadSetting(
            f"setting gate.max-gap: saw {config.max_gap}, needed at least gate.min-gap ({config.min_gap})"
        )
    if config.gate_budget_unit == "share" and budget is not None and budget > 1:
        raise BadSetting(f"setting gate.budget: saw {config.gate_budget} of all rounds, needed at most 1")


def check_local(config: Settings, gate: str, measure: Measure) -> None:
    """Raise BadSetting if settings of one kind of work contradict each other, or are of the other kind."""
    if config.work == "coded":
        for key, seen, needed in (
            ("data.placement", config.placement, "private"),
            ("links.codec", config.codec, EXACT),
        ):
            if seen != needed:
                raise BadSetting(f"setting {key}: saw {seen}, needed work = local with it")
        _must_hold(
            config,
            "work = coded",
            {},
            ("gate.name", gate, measure != "gradient", "a gate that weighs distances or nothing"),
            # replicas would be equal only if all clients had the model before
            _no_momentum(config, " (optimizer.server = nesterov has momentum)"),
        )
    if config.inject_clients and config.placement == "private":
        raise BadSetting(
            f"setting data.inject-clients: saw {config.inject_clients} with data.placement private, needed 0 "
            "where data stays where it is (cyclic with code.replicas = 1 lets it lie so, and be shared)"
        )
    overlaps = config.placement in ("scattered", "cyclic") and isinstance(config.replicas, int)
    if overlaps and int(config.replicas) > config.min_clients:
        raise BadSetting(
            f"setting code.replicas: saw {config.replicas} with data.placement {config.placement}, "
            f"needed at most min-clients ({config.min_clients})"
        )


def check_choice(config: Settings) -> None:
    """Raise BadSetting if a round needs all clients, or more than the newest model."""
    if config.clients_per_round:
        _must_hold(
            config,
            "aggregation.clients-per-round",
            OF_CLIENTS | OWN_DATA | WHOLE,
            _no_momentum(config, " (clients need the model before as well)"),
        )


def _takes_model(rule: str) -> bool:
    """Whether an aggregation rule takes the common model: it starts anew with each one."""
    return rule != AUTO and rule_named(rule).begin is not AggregationRule.begin


def _checks_outliers(rule: str) -> bool:
    """Whether an aggregation rule takes in what evaluations show of its outliers."""
    return rule_named(rule).check is not AggregationRule.check


def check_late(config: Settings, gate: str, measure: Measure) -> None:
    """Raise BadSetting if each update has to be in the sum of its own round."""
    if config.late_updates == "wait":
        if config.groups == "speed":
            raise BadSetting(
                "setting aggregation.late-updates: saw wait, needed count with aggregation.groups = speed"
            )
        return
    rule = config.aggregator
    _must_hold(
        config,
        "aggregation.late-updates = count",
        OF_CLIENTS | {"aggregation.clients-per-round": 0, "data.inject-clients": 0, **WHOLE},
        ("links.kind", config.link, config.link != "messages", "session or auto"),
        (
            "aggregation.rule",
            rule,
            not _takes_model(rule),
            "a rule that does not take the model from which updates start",
        ),
        ("privacy.unit", config.privacy_unit, not config.is_private, "record (if any privacy)"),
        ("gate.name", gate, measure == "none", "a gate without a measure, such as every or pace,"),
    )


def check_outlier_checks(config: Settings) -> None:
    """Raise BadSetting if there are no single updates whose influence could be evaluated."""
    if config.check_outliers != "on":
        return
    rule = config.aggregator
    _must_hold(
        config,
        "aggregation.check-outliers = on",
        OF_CLIENTS | {"links.fragments": 1},
        ("privacy.unit", config.privacy_unit, not config.is_private, "record (if any privacy)"),
        ("history.evaluate-every", config.evaluate_every, bool(config.evaluate_every), "1 or more"),
        ("script", config.script, not config.script, "a task, whose models the server evaluates"),
        ("aggregation.rule", rule, rule == AUTO or _checks_outliers(rule), "auto or bounded-mean"),
    )


def check_fragments(config: Settings, gate: str, measure: Measure) -> None:
    """Raise BadSetting if parts of the model cannot be exchanged in turn with these settings."""
    if config.download_codec != EXACT and config.client_app == "stock":
        raise BadSetting(
            f"setting links.download-codec: saw {config.download_codec}, needed {EXACT} with stock clients"
        )
    if config.fragments == 1:
        return
    rule = config.aggregator
    _must_hold(
        config,
        "links.fragments",
        OF_CLIENTS | {"links.kind": "session"},
        _no_momentum(config, ""),
        ("aggregation.rule", rule, not _takes_model(rule), "a rule that does not look at whole tensors"),
        ("gate.name", gate, measure == "none", "a gate without a measure, such as every or pace,"),
    )


def check_script(config: Settings, gate: str, measure: Measure) -> None:
    """Raise BadSetting if a training script cannot do what the settings ask for."""
    if not config.script:
        return
    for key, seen, needed, why in (
        ("work", config.work, "local", "a script trains one model on its own data"),
        ("client.app", config.client_app, "fedgc", "clients start the script"),
        ("data.placement", config.placement, "private", "a script loads its own data"),
    ):
        if seen != needed:
            raise BadSetting(f"setting {key}: saw {seen}, needed {needed} with a script: {why}")
    if config.link == "messages":
        raise BadSetting("setting links.kind: saw messages, needed session or auto with a script")
    if measure == "gradient":
        raise BadSetting(
            f"setting gate.name: saw {gate}, which weighs gradients, which a script does not show; "
            "needed a gate that weighs distances or nothing"
        )
    if config.shared_momentum not in ("auto", "off"):
        raise BadSetting(
            f"setting optimizer.shared-momentum: saw {config.shared_momentum}, needed off or auto with a "
            "script, whose optimizer takes its own steps"
        )


def check_validate_only(config: Settings) -> None:
    """Raise BadSetting if clients cannot score a saved model with these settings."""
    if config.validate_only == "off":
        return
    _must_hold(
        config,
        "validate.only",
        {"client.app": "fedgc"},
        ("resume", config.resume, bool(config.resume), "the run whose model is scored"),
        ("secrecy", config.secrecy, config.secrecy == "open", "open (no figure of a single site leaves it)"),
        ("links.kind", config.link, config.link != "messages", "session or auto"),
    )


def check_best(config: Settings) -> None:
    """Raise BadSetting if the best model is to be chosen by no figure, or never looked for."""
    if config.best_patience and not config.best:
        raise BadSetting("setting validate.patience: saw no validate.best, needed the figure that it follows")
    if config.best and config.secrecy == "masked":
        raise BadSetting(
            f"setting validate.best: saw {config.best} with secrecy = masked, needed none: "
            "under masks no figure of a single site leaves it"
        )
    if config.best and config.client_app == "stock":
        raise BadSetting(
            f"setting validate.best: saw {config.best} with client.app = stock, needed fedgc's own clients"
        )
    if config.best and not config.evaluate_every:
        raise BadSetting(
            "setting validate.best: saw history.evaluate-every 0, needed at least 1 to choose a best model"
        )


def check_site(config: Settings, gate: str, *, always_syncs: bool) -> None:
    """Raise BadSetting if the settings do not fit the run of a site."""
    if not config.site_gateway:
        return
    for key, seen, needed, is_possible in (
        ("gate.name", gate, "every, with gate.period 1", always_syncs),
        ("secrecy", config.secrecy, "open", config.secrecy == "open"),
        ("client.app", config.client_app, "fedgc", config.client_app == "fedgc"),
        ("links.fragments", config.fragments, "1", config.fragments == 1),
    ):
        if not is_possible:
            raise BadSetting(f"setting {key}: saw {seen}, needed {needed} for the fleet of a site")
