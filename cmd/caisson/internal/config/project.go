package config

import (
	"bytes"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/goccy/go-yaml/ast"

	"github.com/caisson-run/caisson/tools"
)

// ProjectPath is where a workspace keeps its own settings.
const ProjectPath = ".caisson/config.yaml"

// MaxProjectBytes bounds a workspace's file. One that sets every key is below
// 4 KiB, and what a stranger wrote is parsed before anybody has read it.
const MaxProjectBytes = 16 << 10

// The YAML library takes room with the square of the nesting (1 GiB for 32 KiB
// of "- "), so that is bounded before it sees a stranger's file. A file of
// settings nests four deep.
const maxProjectBrackets = 256

var nestedOnOneLine = regexp.MustCompile(`(?m)^[ \t]*([-?][ \t]+){8}`)

// ProjectFile is a workspace's own file, as it was read once: what is hashed,
// trusted and parsed is the same bytes.
type ProjectFile struct {
	// Path is for messages.
	Path string
	Text []byte
}

// SHA256 is the hash of the bytes.
func (p ProjectFile) SHA256() string { return hash(p.Text) }

// Project is what a workspace's own file may say. It counts only in a trusted
// workspace, and makes nothing milder: limits and resources are lowered to it,
// the policy's modes raised to it. It names no model, address, key, backend,
// image, engine or program, and takes nothing from the environment.
type Project struct {
	// Git is "ro", Mode "overlay".
	Git  *string `yaml:"git"`
	Mode *string `yaml:"mode"`
	// OnPrompt is "deny" or "fail".
	OnPrompt *string `yaml:"on_prompt"`
	// RefuseLost is true, InstructionFiles false.
	RefuseLost       *bool          `yaml:"refuse_lost"`
	InstructionFiles *bool          `yaml:"instruction_files"`
	Policy           *ProjectPolicy `yaml:"policy"`
	Limits           Limits         `yaml:"limits"`
	Resources        Resources      `yaml:"resources"`
	Fetch            FetchBounds    `yaml:"fetch"`
}

// ProjectPolicy raises modes: the call of a tool is at least as strict as it says.
type ProjectPolicy struct {
	Preset            *string           `yaml:"preset"`
	Default           map[string]string `yaml:"default"` // class: mode
	Tools             map[string]string `yaml:"tools"`   // name: mode
	DangerousCommands []string          `yaml:"dangerous_commands"`
}

// ParseProject reads a workspace's file. It is strict: a key that would loosen
// something, or that is not known, is an [Error] with its place.
func ParseProject(f ProjectFile) (Project, error) {
	var p Project
	switch {
	case len(f.Text) > MaxProjectBytes:
		return p, &Error{Where: f.Path, Message: fmt.Sprintf("larger than %d bytes", MaxProjectBytes)}
	case bytes.Count(f.Text, []byte("["))+bytes.Count(f.Text, []byte("{")) > maxProjectBrackets, nestedOnOneLine.Match(f.Text):
		return p, &Error{Where: f.Path, Message: "nested too deeply, or too many brackets, for a file of settings"}
	}
	err := parseWith(f.Path, f.Text, onlyPlain, &p)
	if e, ok := errors.AsType[*Error](err); ok {
		return p, explainForeign(e)
	}
	if err != nil {
		return p, err
	}
	return p, p.check(f.Path)
}

// onlyPlain refuses what a plain file of settings does not need, and what would
// make its meaning depend on more than its bytes.
func onlyPlain(body ast.Node) error {
	var v plainVisitor
	ast.Walk(&v, body)
	return v.err
}

// plainVisitor keeps the first thing that a plain file would not hold.
type plainVisitor struct{ err error }

// Visit implements ast.Visitor.
func (v *plainVisitor) Visit(n ast.Node) ast.Visitor {
	if v.err != nil || n == nil {
		return nil
	}
	switch n := n.(type) {
	case *ast.AnchorNode, *ast.AliasNode, *ast.TagNode, *ast.MergeKeyNode:
		v.err = placed(n, errors.New("anchors, aliases, merges and tags are not taken from a workspace"))
	case *ast.StringNode:
		if strings.Contains(n.Value, "${") {
			v.err = placed(n, errors.New("a workspace's file takes no values from the environment"))
		}
	}
	return v
}

var unknownField = regexp.MustCompile(`^unknown field "([^"]*)"$`)

// explainForeign says of a key that people may set, and a workspace may not, why.
func explainForeign(e *Error) error {
	m := unknownField.FindStringSubmatch(e.Message)
	if m != nil && slices.ContainsFunc(Keys(), func(k Key) bool { return slices.Contains(strings.Split(k.Name, "."), m[1]) }) {
		e.Message = fmt.Sprintf("a workspace can't set %q: its file can only tighten", m[1])
		e.Mend = "take the key out; it belongs into your own configuration"
	}
	return e
}

// check refuses values that would loosen, or that mean nothing.
func (p Project) check(where string) error {
	loosens := func(key, got, only string) error {
		return &Error{Where: where, Message: fmt.Sprintf("%s: %s would loosen, and a workspace can only tighten", key, got), Mend: "write " + only + ", or take the key out"}
	}
	switch {
	case p.Git != nil && *p.Git != "ro":
		return loosens("git", *p.Git, "ro")
	case p.Mode != nil && *p.Mode != "overlay":
		return loosens("mode", *p.Mode, "overlay")
	case p.OnPrompt != nil && *p.OnPrompt != "deny" && *p.OnPrompt != "fail":
		return loosens("on_prompt", *p.OnPrompt, "deny or fail")
	case p.RefuseLost != nil && !*p.RefuseLost:
		return loosens("refuse_lost", "false", "true")
	case p.InstructionFiles != nil && *p.InstructionFiles:
		return loosens("instruction_files", "true", "false")
	}
	if err := p.Fetch.check(where); err != nil || p.Policy == nil {
		return err
	}
	for _, group := range []struct {
		key   string
		modes map[string]string
	}{{"policy.default", p.Policy.Default}, {"policy.tools", p.Policy.Tools}} {
		for _, name := range sorted(group.modes) {
			if group.modes[name] == string(tools.ModeAuto) {
				return loosens(group.key+"."+name, "auto", "prompt_once, prompt or deny")
			}
		}
	}
	for _, layer := range p.Policy.policies() {
		if err := layer.Validate(); err != nil {
			return &Error{Where: where, Message: strings.TrimPrefix(err.Error(), "check policy: ")}
		}
	}
	if p.Policy.Preset != nil {
		if _, err := tools.Preset(*p.Policy.Preset); err != nil {
			return &Error{Where: where, Message: "policy.preset: " + err.Error()}
		}
	}
	return nil
}

// tightenBy lays a workspace's file over the settings below it, where it is
// stricter. Its policy is kept apart: it holds whatever is laid over it.
func (c *Config) tightenBy(p Project) error {
	over(&c.Git, p.Git)
	over(&c.Mode, p.Mode)
	over(&c.File.RefuseLost, p.RefuseLost)
	over(&c.File.InstructionFiles, p.InstructionFiles)
	if p.OnPrompt != nil && milder(*c.OnPrompt, *p.OnPrompt) {
		c.OnPrompt = p.OnPrompt
	}
	lowerLimits(&c.Limits, p.Limits)
	lowerResources(&c.File.Resources, p.Resources)
	if err := c.Fetch.narrow(ProjectPath, p.Fetch); err != nil {
		return err
	}
	c.Project = p
	return nil
}

// policies are the rules as layers that tighten: the preset, and the entries.
func (p *ProjectPolicy) policies() []tools.Policy {
	if p == nil {
		return nil
	}
	full := Policy{Preset: p.Preset, Default: p.Default, Tools: p.Tools, DangerousCommands: p.DangerousCommands}
	return full.tightening(ProjectPath)
}
