package runner

import (
	"fmt"

	"go.uber.org/zap"

	"github.com/caisson-run/caisson/tools"
)

// Definitions are those of the built-in tools, in the order in which models are
// offered them, for whoever asks about tools without a session.
func Definitions() ([]tools.Definition, error) { return DefinitionsOf(Options{}) }

// DefinitionsOf are those of a session with these options: of what they say
// about tools (Declared, Memory, Fetch, Resources; zero is the default).
// Those that are off are among them, with EnabledByDefault false.
func DefinitionsOf(o Options) ([]tools.Definition, error) {
	o.Folder, o.Workspace = &Folder{}, &Workspace{Path: "/"}
	// The tools of a session behind which there is nothing: none of them runs.
	s := &Session{
		log: zap.NewNop(), reader: &boxView{}, exec: &executor{}, opts: o,
	}
	all, err := s.builtins()
	if err != nil {
		return nil, fmt.Errorf("list tools: %w", err)
	}
	defs := make([]tools.Definition, 0, len(all))
	for _, f := range all {
		def, err := tools.Inspect(f)
		if err != nil {
			return nil, fmt.Errorf("list tools: %w", err)
		}
		defs = append(defs, def)
	}
	return defs, nil
}
