package policy

import (
	"fmt"
	"strings"

	"github.com/caisson-run/caisson/tools"
)

// PresetNames lists the presets, strictest use first.
func PresetNames() []string {
	return []string{"strict", "readonly", "default", "sandboxed", "ci"}
}

// Preset returns a policy by name:
//
//	strict     everything prompts
//	readonly   none and read run, everything else is refused
//	default    none and read run, everything else prompts (docs/internal/specification.md §5.2)
//	sandboxed  as default, and write and execute run where the tool runs in the sandbox
//	ci         as sandboxed, and what would prompt is refused
//
// Each has the built-in [DangerousCommands].
func Preset(name string) (Policy, error) {
	p := Policy{Name: name, Dangerous: DangerousCommands()}
	switch name {
	case "strict":
		p.Classes = classModes(ModePrompt, ModePrompt)
		return p, nil
	case "readonly":
		p.Classes = classModes(ModeAuto, ModeDeny)
		return p, nil
	case "default":
		p.Classes = classModes(ModeAuto, ModePrompt)
		return p, nil
	case "sandboxed", "ci":
		p.Classes = classModes(ModeAuto, ModePrompt)
		p.Sandboxed = map[tools.Class]Mode{tools.ClassWrite: ModeAuto, tools.ClassExecute: ModeAuto}
		p.NoPrompts = name == "ci"
		return p, nil
	}
	return Policy{}, fmt.Errorf("find policy preset %q: presets are %s", name, strings.Join(PresetNames(), ", "))
}

// classModes returns one mode for the harmless classes and another for the others.
func classModes(harmless, others Mode) map[tools.Class]Mode {
	return map[tools.Class]Mode{
		tools.ClassNone: harmless, tools.ClassRead: harmless,
		tools.ClassWrite: others, tools.ClassExecute: others, tools.ClassNetwork: others,
	}
}
