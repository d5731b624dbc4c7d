package policy

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/caisson-run/caisson/tools"
)

// Mode is the condition under which a call runs.
type Mode string

// The modes, mildest first.
const (
	// ModeAuto runs without asking.
	ModeAuto Mode = "auto"
	// ModePromptOnce asks the first time; the answer, deny included, holds
	// for the session.
	ModePromptOnce Mode = "prompt_once"
	// ModePrompt asks each time.
	ModePrompt Mode = "prompt"
	// ModeDeny never runs it and does not ask.
	ModeDeny Mode = "deny"
)

// rank orders modes by strictness; an unknown one is the strictest.
func (m Mode) rank() int {
	i := slices.Index([]Mode{ModeAuto, ModePromptOnce, ModePrompt, ModeDeny}, m)
	if i < 0 {
		return int(^uint(0) >> 1)
	}
	return i
}

// Policy decides which calls run, which are asked about and which are refused.
// It is a value and is never changed by a dispatcher. The zero Policy asks
// about everything; start from [Preset].
type Policy struct {
	// Name is the preset's, for records; "" for one made by hand.
	Name string
	// Classes are the defaults; a class that is missing prompts.
	Classes map[tools.Class]Mode
	// Sandboxed replaces Classes for tools that run in the sandbox. A class
	// that is missing keeps its mode of Classes.
	Sandboxed map[tools.Class]Mode
	// Servers is the least strict mode of a tool of a server that Tools does not name, nor
	// its server, whatever the modes of classes are: what a server declares of its tool
	// makes nothing milder. "" means ModePrompt.
	Servers Mode
	// Tools overrides single tools. A key is a canonical name, its wire form,
	// or "server/*" (also "server__*") for all tools of one server. A canonical
	// key wins over its wire form, and both over the server's. A prompt or a
	// deny also binds the tools that act as this one ([tools.Definition].ActsAs), each
	// at least as strictly; an auto is for the tool that it names alone.
	Tools map[string]Mode
	// Commands sets modes of single commands, for every tool that runs commands. A key is
	// a static phrase ([StaticPhrase]), or one that ends with " *", which stands for any
	// further words. Its mode is auto, prompt or deny. An auto counts for a call if all its commands are
	// such phrases: plain, not dangerous, and with further words that name no program, no
	// file to execute and no other directory. It lifts a prompt and never a deny. A
	// prompt or a deny counts wherever a script has the command.
	Commands map[string]Mode
	// RelaxedWorkspaces are directories (absolute, symlinks resolved) in which WRITE
	// is auto, at them and below; other classes keep their mode. They are about
	// the contents of the directory: tools that keep state ([tools.PlaceState]) are not opened.
	RelaxedWorkspaces []string
	// RelaxedModes sets modes of classes inside relaxed workspaces; for tools
	// that keep state only where that is stricter.
	RelaxedModes map[tools.Class]Mode
	// NoPrompts turns every prompt into a deny: what needs a person is
	// refused, deterministically, and never counts as a missing approver.
	NoPrompts bool
	// Dangerous are patterns of commands that are asked about although the mode
	// is auto, and warned of if no one can be asked; see
	// [DangerousCommands]. They are for people and bound nothing.
	Dangerous []string
	// Tighten are further policies, an administrator's requirements and a
	// project's own: each can make the mode stricter, never milder.
	Tighten []Policy
}

// Verdict is the decision of a policy about one tool, and the rule that made it.
type Verdict struct {
	Mode Mode
	// Rule names the rule that decided: "tool shell", "server github/*",
	// "relaxed workspace", "class write", "sandboxed write", "no prompts".
	Rule string
	// Command is the entry of [Policy].Commands that decided, "" for none.
	Command string
	// As is the other tool whose rule decided, because the call does its work;
	// "" where the rule is about the tool itself.
	As tools.Name
}

// Validate reports the first invalid mode or class, by its key.
func (p Policy) Validate() error {
	for _, group := range []struct {
		name  string
		modes map[tools.Class]Mode
	}{{"default", p.Classes}, {"sandboxed", p.Sandboxed}, {"relaxed_modes", p.RelaxedModes}} {
		for class, mode := range group.modes {
			if !class.Valid() {
				return fmt.Errorf("check policy: %s names the class %q; classes are none, read, write, execute, network", group.name, class)
			}
			if !mode.isValid() {
				return fmt.Errorf("check policy: %s %s has the mode %q; modes are auto, prompt, prompt_once, deny", group.name, class, mode)
			}
		}
	}
	if p.Servers != "" && !p.Servers.isValid() {
		return fmt.Errorf("check policy: servers has the mode %q; modes are auto, prompt, prompt_once, deny", p.Servers)
	}
	for key, mode := range p.Tools {
		if !mode.isValid() {
			return fmt.Errorf("check policy: tool %s has the mode %q; modes are auto, prompt, prompt_once, deny", key, mode)
		}
	}
	if _, err := parseDangerous(p.Dangerous, ""); err != nil {
		return fmt.Errorf("check policy: %w", err)
	}
	if _, err := parseCommands(p.Commands); err != nil {
		return fmt.Errorf("check policy: %w", err)
	}
	for _, dir := range p.RelaxedWorkspaces {
		if !filepath.IsAbs(dir) {
			return fmt.Errorf("check policy: relaxed workspace %q must be an absolute path", dir)
		}
	}
	for _, stricter := range p.Tighten {
		if err := stricter.Validate(); err != nil {
			return err
		}
	}
	return nil
}

func (m Mode) isValid() bool {
	return slices.Contains([]Mode{ModeAuto, ModePromptOnce, ModePrompt, ModeDeny}, m)
}

// Decide returns what the policy asks for every call of a tool in a workspace;
// see [Policy.DecideCall].
func (p Policy) Decide(def tools.Definition, workspace string) Verdict {
	return p.DecideCall(def, workspace, nil)
}

// DecideCall returns what the policy asks for a call with this input. A deny
// wins wherever it stands among the rules that apply to the tool; otherwise the
// most exact rule decides, then the strictest of the restrictions on tools that
// the call acts as, and then the strictest of the policies.
// Rules about commands come before those about tools and classes, but lift no deny.
func (p Policy) DecideCall(def tools.Definition, workspace string, input json.RawMessage) Verdict {
	danger, err := p.DangerMatcher("")
	if err != nil {
		return Verdict{Mode: ModeDeny, Rule: err.Error()}
	}
	return p.DecideCallWith(danger, def, workspace, input)
}

// DecideCallWith is [Policy.DecideCall] with the matcher of [Policy.DangerMatcher], made
// once.
func (p Policy) DecideCallWith(danger DangerMatcher, def tools.Definition, workspace string, input json.RawMessage) Verdict {
	s := situation{def: def, workspace: workspace, danger: danger}
	if def.ActsAs != nil {
		s.acts = def.ActsAs(input)
	}
	if def.Commands != nil && input != nil {
		s.commands = def.Commands(input)
	}
	return p.decideSituation(s)
}

// situation is a call as the layers of a policy decide about it.
type situation struct {
	def       tools.Definition
	workspace string
	acts      []tools.Name
	commands  []string
	danger    DangerMatcher
}

func (p Policy) decideSituation(s situation) Verdict {
	def, workspace, acts := s.def, s.workspace, s.acts
	verdict := decisiveRule(p.rulesFor(def, workspace))
	for _, name := range acts {
		rules := p.rulesByName(name)
		if len(rules) == 0 && name.Server() != "" {
			rules = append(rules, p.serverRule())
		}
		if v := decisiveRule(rules); v.Mode != "" && v.Mode.rank() > verdict.Mode.rank() {
			verdict = Verdict{Mode: v.Mode, Rule: v.Rule + ", whose work this call does", As: name}
		}
	}
	verdict = p.decideCommands(verdict, s.commands, s.danger)
	for _, stricter := range p.Tighten {
		if v := stricter.decideSituation(s); v.Mode.rank() > verdict.Mode.rank() {
			verdict = v
			if stricter.Name != "" {
				verdict.Rule = stricter.Name + ": " + v.Rule
			}
		}
	}
	if p.NoPrompts && (verdict.Mode == ModePrompt || verdict.Mode == ModePromptOnce) {
		verdict.Mode, verdict.Rule = ModeDeny, "no prompts, "+verdict.Rule
	}
	return verdict
}

// anyCommand stands for commands that are unknown when the policy decides.
const anyCommand = `"$@"`

// DecideSandbox returns the strictest verdict on a sandbox without a model, whose commands
// write and execute without a call. If enabled is set, the operator has answered p's own
// questions. Denials still hold, and so do the policies of Tighten.
func (p Policy) DecideSandbox(workspace string, enabled bool) Verdict {
	strictest := Verdict{Mode: ModeAuto}
	for _, def := range []tools.Definition{
		{Name: tools.NameShell, Class: tools.ClassExecute, Runs: tools.PlaceSandbox, Commands: func(json.RawMessage) []string { return []string{anyCommand} }},
		{Class: tools.ClassWrite, Runs: tools.PlaceSandbox},
	} {
		v := p.DecideCall(def, workspace, json.RawMessage("{}"))
		if enabled && v.Mode != ModeDeny {
			v = Policy{Classes: classModes(ModeAuto, ModeAuto), Tighten: p.Tighten}.DecideCall(def, workspace, json.RawMessage("{}"))
		}
		if v.Mode.rank() > strictest.Mode.rank() {
			strictest = v
		}
	}
	return strictest
}

// decisiveRule returns the first deny among rules, otherwise the first rule; the zero
// Verdict for none.
func decisiveRule(rules []Verdict) Verdict {
	if i := slices.IndexFunc(rules, func(v Verdict) bool { return v.Mode == ModeDeny }); i >= 0 {
		return rules[i]
	}
	if len(rules) == 0 {
		return Verdict{}
	}
	return rules[0]
}

// dangerousPatterns are the patterns of all layers.
func (p Policy) dangerousPatterns() []string {
	all := slices.Clone(p.Dangerous)
	for _, stricter := range p.Tighten {
		all = append(all, stricter.dangerousPatterns()...)
	}
	return all
}

// DangerousIn returns the first command of a script that a layer's patterns call
// dangerous, made safe to show; "" if there is none. No allow for the session or for
// good applies to it. The error is that of [Policy.Validate].
func (p Policy) DangerousIn(script string) (string, error) {
	m, err := p.DangerMatcher("")
	return m.Find(script), err
}

// Unmatched are the keys of per-tool modes, of all layers, that name none of
// the tools, sorted. A key about one of the servers, whose tools are not known, is none
// of them.
func (p Policy) Unmatched(defs []tools.Definition, servers ...string) []string {
	var keys []string
	for _, key := range slices.Sorted(maps.Keys(p.Tools)) {
		if !slices.Contains(servers, serverOf(key)) && !slices.ContainsFunc(defs, func(def tools.Definition) bool {
			return slices.Contains(p.ruleKeys(def.Name), key) || def.ActsAs != nil && slices.Contains(def.ActsAs(nil), tools.Name(key))
		}) {
			keys = append(keys, key)
		}
	}
	for _, stricter := range p.Tighten {
		keys = append(keys, stricter.Unmatched(defs, servers...)...)
	}
	slices.Sort(keys)
	return slices.Compact(keys)
}

// NotBinding returns the tools of class write whose calls the policy restricts
// although commands, which change the same files, are not denied and may run
// under a milder rule.
func (p Policy) NotBinding(defs []tools.Definition, workspace string) []tools.Name {
	p.NoPrompts = false // what is asked about somewhere may be allowed there
	milder := ModeDeny
	for _, def := range defs {
		if def.Class == tools.ClassExecute && def.Runs == tools.PlaceSandbox && def.Commands != nil {
			if mode := p.Decide(def, workspace).Mode; mode.rank() < milder.rank() {
				milder = mode
			}
		}
	}
	var names []tools.Name
	for _, def := range defs {
		if def.Class != tools.ClassWrite || def.Runs != tools.PlaceSandbox || milder == ModeDeny {
			continue
		}
		if v := p.Decide(def, workspace); v.Mode.rank() > milder.rank() || p.restrictsTool(def.Name) {
			names = append(names, def.Name)
		}
	}
	return names
}

// AllowsSandboxed reports whether the policy lets a call of any of the tools that
// run in the sandbox run, perhaps after a prompt.
func (p Policy) AllowsSandboxed(defs []tools.Definition, workspace string) bool {
	return slices.ContainsFunc(defs, func(def tools.Definition) bool {
		return def.Runs == tools.PlaceSandbox && p.Decide(def, workspace).Mode != ModeDeny
	})
}

// AllowsServer reports whether the policy lets a call of some tool of a server run,
// perhaps after a prompt. Its tools have the class and the place, and need not be known.
func (p Policy) AllowsServer(server string, class tools.Class, runs tools.Place, workspace string) bool {
	names := []tools.Name{tools.Name(server + "/any")}
	for key := range p.Tools {
		if tool, ok := strings.CutPrefix(strings.Replace(key, "__", "/", 1), server+"/"); ok && tool != "*" {
			names = append(names, tools.Name(server+"/"+tool))
		}
	}
	return slices.ContainsFunc(names, func(name tools.Name) bool {
		return p.Decide(tools.Definition{Name: name, Class: class, Runs: runs}, workspace).Mode != ModeDeny
	})
}

// serverOf returns the server of a key of per-tool modes, "" for a tool of our own.
func serverOf(key string) string {
	return tools.Name(strings.Replace(key, "__", "/", 1)).Server()
}

// restrictsTool reports whether a rule of any layer restricts the tool by its name.
func (p Policy) restrictsTool(name tools.Name) bool {
	mode, ok := p.Tools[string(name)]
	return ok && mode != ModeAuto || slices.ContainsFunc(p.Tighten, func(s Policy) bool { return s.restrictsTool(name) })
}

// ruleKeys are the keys of Policy.Tools that are about a tool, the most exact first. Each
// name that models are offered as the same counts: a server could offer a.b beside a_b.
func (p Policy) ruleKeys(name tools.Name) []string {
	keys := []string{string(name)}
	for _, key := range slices.Sorted(maps.Keys(p.Tools)) {
		if key != string(name) && tools.Name(key).Same(name) {
			keys = append(keys, key)
		}
	}
	if server := name.Server(); server != "" {
		keys = append(keys, server+"/*", server+"__*")
	}
	return keys
}

// rulesByName are the rules about a tool by its name, the most exact first.
func (p Policy) rulesByName(name tools.Name) []Verdict {
	var rules []Verdict
	for _, key := range p.ruleKeys(name) {
		kind := "tool "
		if strings.HasSuffix(key, "*") {
			kind = "server "
		}
		if mode, ok := p.Tools[key]; ok {
			rules = append(rules, Verdict{Mode: mode, Rule: kind + key})
		}
	}
	return rules
}

// serverRule is the rule about tools of servers that no other rule names.
func (p Policy) serverRule() Verdict {
	return Verdict{Mode: cmp.Or(p.Servers, ModePrompt), Rule: "tools of servers"}
}

// rulesFor are all rules that apply to a tool, the most exact first; never empty.
func (p Policy) rulesFor(def tools.Definition, workspace string) []Verdict {
	var rules []Verdict
	add := func(mode Mode, ok bool, rule string) {
		if ok {
			rules = append(rules, Verdict{Mode: mode, Rule: rule})
		}
	}
	if p.relaxesWorkspace(workspace) {
		mode, ok := p.RelaxedModes[def.Class]
		state := def.Runs == tools.PlaceState
		add(mode, ok && (!state || mode.rank() > p.classMode(def.Class).rank()), "relaxed workspace, class "+string(def.Class))
		add(ModeAuto, !ok && def.Class == tools.ClassWrite && !state, "relaxed workspace")
	}
	if def.Runs == tools.PlaceSandbox {
		mode, ok := p.Sandboxed[def.Class]
		add(mode, ok, "sandboxed "+string(def.Class))
	}
	mode, ok := p.Classes[def.Class]
	add(mode, ok, "class "+string(def.Class))
	named := p.rulesByName(def.Name)
	add(ModePrompt, len(rules)+len(named) == 0, "class "+string(def.Class)+" (no rule)")
	if def.Name.Server() != "" && len(named) == 0 && (len(rules) == 0 || p.serverRule().Mode.rank() >= rules[0].Mode.rank()) {
		named = append(named, p.serverRule())
	}
	return append(named, rules...)
}

// classMode is the mode of a class outside of the sandbox.
func (p Policy) classMode(class tools.Class) Mode {
	if mode, ok := p.Classes[class]; ok {
		return mode
	}
	return ModePrompt
}

func (p Policy) relaxesWorkspace(workspace string) bool {
	return workspace != "" && slices.ContainsFunc(p.RelaxedWorkspaces, func(dir string) bool {
		rel, err := filepath.Rel(dir, workspace)
		return err == nil && rel != ".." && !strings.HasPrefix(rel, ".."+string(filepath.Separator))
	})
}

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
