package tools

import (
	"fmt"
	"strings"
)

// PresetNames lists the presets, strictest use first.
func PresetNames() []string {
	return []string{"strict", "readonly", "default", "sandboxed", "ci"}
}

// Preset gives a policy by name:
//
//	strict     everything prompts
//	readonly   none and read run, everything else is refused
//	default    none and read run, everything else prompts (seed 002)
//	sandboxed  as default, and write and execute run where the tool runs in the sandbox
//	ci         as sandboxed, and what would prompt is refused
func Preset(name string) (Policy, error) {
	switch name {
	case "strict":
		return Policy{Name: name, Classes: classModes(ModePrompt, ModePrompt)}, nil
	case "readonly":
		return Policy{Name: name, Classes: classModes(ModeAuto, ModeDeny)}, nil
	case "default":
		return Policy{Name: name, Classes: classModes(ModeAuto, ModePrompt)}, nil
	case "sandboxed", "ci":
		return Policy{
			Name:      name,
			Classes:   classModes(ModeAuto, ModePrompt),
			Sandboxed: map[Class]Mode{ClassWrite: ModeAuto, ClassExecute: ModeAuto},
			NoPrompts: name == "ci",
		}, nil
	}
	return Policy{}, fmt.Errorf("find policy preset %q: presets are %s", name, strings.Join(PresetNames(), ", "))
}

// classModes gives the harmless classes one mode and the others another.
func classModes(harmless, others Mode) map[Class]Mode {
	return map[Class]Mode{
		ClassNone: harmless, ClassRead: harmless,
		ClassWrite: others, ClassExecute: others, ClassNetwork: others,
	}
}
