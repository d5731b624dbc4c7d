package runner

import (
	"fmt"

	"go.uber.org/zap"

	"github.com/caisson-run/caisson/tools"
)

// Definitions returns the definitions of the built-in tools, in the order in which
// models are offered them.
func Definitions() ([]tools.Definition, error) { return DefinitionsOf(Options{}) }

// DefinitionsOf returns the definitions of the tools that a session with these options
// has: of their fields about tools (Declared, Memory, Fetch, Resources, Tools; zero is
// the default). Those that are off are among them, with EnabledByDefault false.
func DefinitionsOf(o Options) ([]tools.Definition, error) {
	all, err := toolset{opts: o, hostRoot: "/", reader: &boxView{}, exec: &executor{}, log: zap.NewNop()}.factories()
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
