"""What a machine takes for tile tasks: rules, estimates before there are tasks, and the time below which none gets."""
