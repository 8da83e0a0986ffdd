"""From the public function to an engine: binding of arguments, look-up of calls met before, choice and dispatch."""
