package runner

import (
	"fmt"

	"go.uber.org/zap"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/tools"
)

// Definitions are those of the built-in tools, in the order in which models are
// offered them, for whoever asks about tools without a session.
func Definitions() ([]tools.Definition, error) {
	// The tools of a session behind which there is nothing: none of them runs.
	s := &Session{
		log: zap.NewNop(), reader: &boxView{}, exec: &executor{},
		opts: Options{Folder: &Folder{}, Workspace: &Workspace{Path: "/"}, Resources: limits.DefaultResources()},
	}
	s.journal = newJournal(nil, nil)
	s.exec.background = newBackgrounds(s.exec, s.journal.background, s.log)
	all, err := s.builtins()
	if err != nil {
		return nil, fmt.Errorf("list tools: %w", err)
	}
	defs := make([]tools.Definition, 0, len(all))
	for _, f := range all {
		defs = append(defs, f().Definition())
	}
	return defs, nil
}
