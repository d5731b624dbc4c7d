package main

import "github.com/caisson-run/caisson/cmd/caisson/internal/agents"

func (s *settings) agentFinder(workspace string) agents.Finder {
	return agents.Finder{Home: s.environ.get("HOME"), Path: s.environ.get("PATH"), Installed: joinUnder(s.environ.cacheDir(), "agents"), Writable: s.writableDirs(workspace)}
}
