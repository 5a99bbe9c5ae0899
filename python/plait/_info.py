"""What this build has and this machine can do."""

from plait import _core


def info() -> None:
    """Prints version, usable CPUs, CPU tiers and environment variables as this process sees them.

    `python -m plait info` shows the same and more for a process of its own.

    Raises:
        plait.Error: PLAIT_KERNEL names a tier that is unknown or cannot be used here.
    """
    chosen = _core.default_tier()
    print(f"plait {_core.version}, {_core.usable_cpus()} usable CPUs")
    print("kernel tiers (all give the same bits)")
    for name, usable, reason in _core.tiers():
        state = f"no: {reason}" if not usable else "usable, chosen" if name == chosen else "usable"
        print(f"  {name:<16}{state}")
    print("environment")
    for name, current, default, text in _core.environment():
        value = current or "not set"
        note = "default" if current == default else f"default {default or 'not set'}"
        print(f"  {name:<18}{value} ({note}). {text}")
