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
	ModeAuto Mode = "auto"
	// ModePromptOnce asks the first time. The answer, including a deny, holds for
	// the session.
	ModePromptOnce Mode = "prompt_once"
	ModePrompt     Mode = "prompt"
	// ModeDeny refuses the call without asking.
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

// Policy decides which calls run, which are asked about and which are refused. The
// zero Policy asks about everything; start from [Preset].
type Policy struct {
	// Name is the preset's name for records, or "".
	Name string
	// Classes are the default modes. A missing class prompts.
	Classes map[tools.Class]Mode
	// Sandboxed replaces Classes for tools that run in the sandbox. A missing class
	// keeps its mode from Classes.
	Sandboxed map[tools.Class]Mode
	// Servers is the least strict mode for servers' tools that Tools names neither
	// itself nor by server, whatever the modes of classes: what a server declares
	// must not make anything milder. "" means ModePrompt.
	Servers Mode
	// Tools overrides single tools. A key is a canonical name, its wire form, or
	// "server/*" (or "server__*") for all tools of a server. The canonical name
	// wins over the wire form, and both over the server. A prompt or deny also
	// binds, at least as strictly, tools that act as this one
	// ([tools.Definition].ActsAs); an auto applies only to the named tool.
	Tools map[string]Mode
	// Commands sets modes of single commands, for every tool that runs commands. A
	// key is a static phrase ([StaticPhrase]), or one that ends with " *" for any
	// further words. The mode is auto, prompt or deny. An auto counts only if all
	// commands of a call are such phrases: plain, not dangerous, and with further
	// words that name no program, no file to execute and no other directory. It
	// lifts a prompt but never a deny. A prompt or deny counts wherever a script
	// has the command.
	Commands map[string]Mode
	// RelaxedWorkspaces are directories (absolute, symlinks resolved) in and below
	// which write is auto. They are about the directory's content: tools that keep
	// state ([tools.PlaceState]) are not affected.
	RelaxedWorkspaces []string
	// RelaxedModes sets modes of classes in relaxed workspaces. For tools that keep
	// state they count only if stricter.
	RelaxedModes map[tools.Class]Mode
	// NoPrompts turns every prompt into a deny, which never counts as a missing
	// approver.
	NoPrompts bool
	// Dangerous are patterns of commands that are asked about although the mode is
	// auto, or warned of if nobody can be asked; see [DangerousCommands]. They are
	// no security boundary.
	Dangerous []string
	// Tighten are further policies, from an administrator or the project. Each can
	// only make modes stricter.
	Tighten []Policy
}

// Verdict is a policy's decision about a call, and the rule that made it.
type Verdict struct {
	Mode Mode
	// Rule names that rule: "tool shell", "server github/*", "relaxed workspace",
	// "class write", "sandboxed write", "no prompts".
	Rule string
	// Command is the entry of [Policy].Commands that decided, or "".
	Command string
	// As is the other tool whose rule decided because the call does its work, or
	// "".
	As tools.Name
}

// Validate reports an invalid mode, class, pattern, command or directory.
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

// Decide returns the verdict for every call of a tool in a workspace; see
// [Policy.DecideCall].
func (p Policy) Decide(def tools.Definition, workspace string) Verdict {
	return p.DecideCall(DangerMatcher{}, def, workspace, nil)
}

// DecideCall returns the verdict for a call with this input; danger is from
// [Policy.DangerMatcher]. Of the rules that apply to the tool, a deny wins, otherwise
// the most specific one. Then the strictest restriction on tools that the call acts
// as counts, and then the strictest policy. Rules about commands come before rules
// about tools and classes, but lift no deny.
func (p Policy) DecideCall(danger DangerMatcher, def tools.Definition, workspace string, input json.RawMessage) Verdict {
	s := situation{def: def, workspace: workspace, danger: danger}
	if def.ActsAs != nil {
		s.acts = def.ActsAs(input)
	}
	if def.Commands != nil && input != nil {
		s.commands = def.Commands(input)
	}
	return p.decideSituation(s)
}

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
	verdict = p.decideCommands(verdict, s)
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

// DecideSandbox returns the strictest verdict on a sandbox without a model, whose
// commands write and execute without calls. enabled means that the operator has
// answered p's own prompts; denials and the policies of Tighten still hold.
func (p Policy) DecideSandbox(workspace string, enabled bool) Verdict {
	strictest := Verdict{Mode: ModeAuto}
	for _, def := range []tools.Definition{
		{Name: tools.NameShell, Class: tools.ClassExecute, Runs: tools.PlaceSandbox, Commands: func(json.RawMessage) []string { return []string{AnyCommand} }},
		{Class: tools.ClassWrite, Runs: tools.PlaceSandbox},
	} {
		v := p.DecideCall(DangerMatcher{}, def, workspace, json.RawMessage("{}"))
		if enabled && v.Mode != ModeDeny {
			v = Policy{Classes: classModes(ModeAuto, ModeAuto), Tighten: p.Tighten}.DecideCall(DangerMatcher{}, def, workspace, json.RawMessage("{}"))
		}
		if v.Mode.rank() > strictest.Mode.rank() {
			strictest = v
		}
	}
	return strictest
}

// decisiveRule returns the first deny among rules, otherwise the first rule, or the
// zero Verdict.
func decisiveRule(rules []Verdict) Verdict {
	if i := slices.IndexFunc(rules, func(v Verdict) bool { return v.Mode == ModeDeny }); i >= 0 {
		return rules[i]
	}
	if len(rules) == 0 {
		return Verdict{}
	}
	return rules[0]
}

func (p Policy) dangerousPatterns() []string {
	all := slices.Clone(p.Dangerous)
	for _, stricter := range p.Tighten {
		all = append(all, stricter.dangerousPatterns()...)
	}
	return all
}

// DangerousIn returns the first dangerous command in a script, safe for display, or
// "". An allow for the session or for good doesn't apply to it. The error is from
// [Policy.Validate].
func (p Policy) DangerousIn(script string) (string, error) {
	m, err := p.DangerMatcher("")
	return m.Find(script), err
}

// Unmatched returns the per-tool keys of all layers, sorted, that name none of the
// tools. Keys about these servers are left out, because their tools are not known.
func (p Policy) Unmatched(defs []tools.Definition, servers ...string) []string {
	var keys []string
	for _, key := range slices.Sorted(maps.Keys(p.Tools)) {
		if of, _ := SplitKey(key); !slices.Contains(servers, of) && !slices.ContainsFunc(defs, func(def tools.Definition) bool {
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

// NotBinding returns the write tools that the policy restricts although commands,
// which can change the same files, may run under a milder rule.
func (p Policy) NotBinding(defs []tools.Definition, workspace string) []tools.Name {
	p.NoPrompts = false // what prompts may be allowed then
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

// AllowsSandboxed reports whether some tool in the sandbox may run, perhaps after a
// prompt.
func (p Policy) AllowsSandboxed(defs []tools.Definition, workspace string) bool {
	return slices.ContainsFunc(defs, func(def tools.Definition) bool {
		return def.Runs == tools.PlaceSandbox && p.Decide(def, workspace).Mode != ModeDeny
	})
}

// AllowsServer reports whether some tool of a server, with this class and place,
// may run, perhaps after a prompt. The tools need not be known.
func (p Policy) AllowsServer(server string, class tools.Class, runs tools.Place, workspace string) bool {
	names := []tools.Name{tools.Name(server + "/any")}
	for key := range p.Tools {
		if of, tool := SplitKey(key); of == server && tool != "*" {
			names = append(names, tools.Name(server+"/"+tool))
		}
	}
	return slices.ContainsFunc(names, func(name tools.Name) bool {
		return p.Decide(tools.Definition{Name: name, Class: class, Runs: runs}, workspace).Mode != ModeDeny
	})
}

// SplitKey splits a key of per-tool modes, such as docs/search or docs__search. server is
// "" for our own tools.
func SplitKey(key string) (server, tool string) {
	for _, separator := range []string{"/", "__"} {
		if server, tool, ok := strings.Cut(key, separator); ok {
			return server, tool
		}
	}
	return "", key
}

// restrictsTool reports whether any layer restricts the tool by name.
func (p Policy) restrictsTool(name tools.Name) bool {
	mode, ok := p.Tools[string(name)]
	return ok && mode != ModeAuto || slices.ContainsFunc(p.Tighten, func(s Policy) bool { return s.restrictsTool(name) })
}

// ruleKeys returns the keys of Policy.Tools for a tool, the most specific first.
// They include names with the same wire form: a server could offer a.b beside a_b.
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

// rulesByName returns the rules about a tool's name, the most specific first.
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

// serverRule applies to servers' tools that no other rule names.
func (p Policy) serverRule() Verdict {
	return Verdict{Mode: cmp.Or(p.Servers, ModePrompt), Rule: "tools of servers"}
}

// rulesFor returns all rules for a tool, the most specific first. There is at least
// one.
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
		add(mode, ok && (!state || mode.rank() > cmp.Or(p.Classes[def.Class], ModePrompt).rank()), "relaxed workspace, class "+string(def.Class))
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

func (p Policy) relaxesWorkspace(workspace string) bool {
	return workspace != "" && slices.ContainsFunc(p.RelaxedWorkspaces, func(dir string) bool {
		rel, err := filepath.Rel(dir, workspace)
		return err == nil && rel != ".." && !strings.HasPrefix(rel, ".."+string(filepath.Separator))
	})
}

// PresetNames lists the presets, the strictest first.
func PresetNames() []string {
	return []string{"strict", "readonly", "default", "sandboxed", "ci"}
}

// Preset returns a policy by name:
//
//	strict     everything prompts
//	readonly   none and read run, everything else is refused
//	default    none and read run, everything else prompts (docs/internal/specification.md §5.2)
//	sandboxed  as default, but write and execute run if the tool runs in the sandbox
//	ci         as sandboxed, but everything that would prompt is refused
//
// Each includes the [DangerousCommands].
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

// classModes returns one mode for none and read, and another for the other classes.
func classModes(harmless, others Mode) map[tools.Class]Mode {
	return map[tools.Class]Mode{
		tools.ClassNone: harmless, tools.ClassRead: harmless,
		tools.ClassWrite: others, tools.ClassExecute: others, tools.ClassNetwork: others,
	}
}
