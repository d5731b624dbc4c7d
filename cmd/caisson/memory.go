package main

import (
	"path/filepath"

	"github.com/caisson-run/caisson/tools/memory"
)

// memory is where notes about the workspace are kept, nil where they are off.
func (s *setup) memory() *memory.Store {
	if on := s.conf.MemoryTools; on == nil || !*on {
		return nil
	}
	return memory.NewStore(filepath.Join(s.environ.stateDir(), "memory"), s.workspace.Path)
}
