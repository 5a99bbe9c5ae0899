"""Stand-ins for packages of other machines, so that code written for them runs on CPU ranks."""
