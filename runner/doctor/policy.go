package doctor

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/agext/levenshtein"

	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/approval"
	"github.com/caisson-run/caisson/tools/policy"
)

// The checks of what may run.
const (
	checkPolicy    = "policy"
	checkOnPrompt  = "on_prompt"
	checkTrusted   = "trusted directory"
	checkApprovals = "approvals"
)

// Policy has the inputs of the policy checks.
type Policy struct {
	Policy   policy.Policy
	Tools    []tools.Definition
	OnPrompt string // deny, fail or allow
	// Trusted are the workspaces whose own settings are in effect. Covered
	// reports whether those settings are still the trusted ones.
	Trusted *approval.Trust
	Covered func(approval.TrustedWorkspace) bool
	Grants  *approval.Grants
	Servers []Server
	// Home is the user's home directory. Temporary are directories for
	// temporary files.
	Home      string
	Temporary []string
}

// CheckPolicy checks which calls run without a prompt, and which rules, trusted
// workspaces and approvals have no effect.
func CheckPolicy(p Policy) []Finding {
	findings := []Finding{checkTools(p.Tools)}
	findings = append(findings, checkRules(p.Policy, p.Tools, p.serverNames())...)
	if note := DescribeNotBinding(p.Policy, p.Tools); note != "" {
		findings = append(findings, Finding{Check: checkPolicy, Result: Warning, Detail: note, Hint: NotBindingHint})
	}
	findings = append(findings, checkUnasked(p.Policy, p.Tools)...)
	findings = append(findings, checkPrompts(p.OnPrompt))
	findings = append(findings, p.checkTrusted()...)
	findings = append(findings, p.checkGrants()...)
	return append(findings, p.checkServers()...)
}

func checkTools(defs []tools.Definition) Finding {
	var off []string
	for _, d := range defs {
		if !d.EnabledByDefault || d.RequiresAdmin {
			off = append(off, string(d.Name))
		}
	}
	detail := fmt.Sprintf("%d are offered", len(defs)-len(off))
	if len(off) > 0 {
		detail += "; off: " + strings.Join(off, ", ")
	}
	return Finding{Check: "tools", Result: OK, Detail: detail}
}

func checkRules(p policy.Policy, defs []tools.Definition, servers []string) []Finding {
	var findings []Finding
	names := namesOf(defs)
	for _, key := range p.Unmatched(defs, servers...) {
		f := Finding{Check: checkPolicy, Result: Warning, Detail: fmt.Sprintf("the rule for %q matches no tool and does nothing", key), Hint: "Take it out of policy.tools; the tools are " + strings.Join(names, ", ") + "."}
		if near := NearestWord(key, names); near != "" {
			f.Hint = fmt.Sprintf("Write %s, if that is meant; otherwise take it out of policy.tools.", near)
		}
		findings = append(findings, f)
	}
	keys := slices.Sorted(maps.Keys(p.Tools))
	for i, key := range keys {
		for _, other := range keys[i+1:] {
			if tools.Name(key).Same(tools.Name(other)) {
				findings = append(findings, Finding{
					Check: checkPolicy, Result: Warning, Hint: "Keep one of the two in policy.tools.",
					Detail: fmt.Sprintf("%q (%s) and %q (%s) are two spellings of one tool: if either is deny, that counts, otherwise the one with a slash", key, p.Tools[key], other, p.Tools[other]),
				})
			}
		}
	}
	if len(p.RelaxedModes) > 0 && len(p.RelaxedWorkspaces) == 0 {
		findings = append(findings, Finding{
			Check: checkPolicy, Result: Warning, Detail: "relaxed_modes has no effect: there is no relaxed workspace",
			Hint: "Name directories under policy.relaxed_workspaces, or remove the modes.",
		})
	}
	return findings
}

// NotBindingHint is the hint for [DescribeNotBinding].
const NotBindingHint = "Set execute: deny under policy.default, where commands must not change files either."

// DescribeNotBinding describes the restrictions of tools that don't keep
// commands from the same changes, or returns "".
func DescribeNotBinding(p policy.Policy, defs []tools.Definition) string {
	var restricted []string
	for _, name := range p.NotBinding(defs, "") {
		restricted = append(restricted, string(name))
	}
	if len(restricted) == 0 {
		return ""
	}
	return "the restriction of " + strings.Join(restricted, ", ") + " does not bind commands: shell can change and delete the same files"
}

func namesOf(defs []tools.Definition) []string {
	var all []string
	for _, d := range defs {
		all = append(all, string(d.Name))
	}
	slices.Sort(all)
	return all
}

// NearestWord returns the word that a misspelt one is likely to mean, or "" if
// none is similar: at most a third of its letters are wrong, or two of a
// shorter word. Two swapped letters are likelier than any other mistake.
func NearestWord(misspelt string, words []string) string {
	best, least := "", min(max(len(misspelt)/3, 2), len(misspelt)-1)+1
	for _, w := range words {
		n := levenshtein.Distance(strings.ToLower(misspelt), strings.ToLower(w), nil)
		if n == 2 && sortLetters(misspelt) == sortLetters(w) {
			n = 0
		}
		if n < least {
			best, least = w, n
		}
	}
	return best
}

func sortLetters(word string) string {
	letters := []byte(strings.ToLower(word))
	slices.Sort(letters)
	return string(letters)
}

// checkUnasked returns a warning for each call that leaves the sandbox without
// a prompt.
func checkUnasked(p policy.Policy, defs []tools.Definition) []Finding {
	var findings []Finding
	unasked := func(def tools.Definition, what string) {
		for _, where := range []string{"", "trusted"} {
			workspace := ""
			if where != "" && len(p.RelaxedWorkspaces) > 0 {
				workspace = p.RelaxedWorkspaces[0]
			}
			if v := p.Decide(def, workspace); v.Mode == policy.ModeAuto {
				findings = append(findings, Finding{
					Check: checkPolicy, Result: Warning, Detail: fmt.Sprintf("%s runs without asking (%s)", what, v.Rule),
					Hint: "Make it prompt or deny, unless what it can reach is bounded otherwise.",
				})
				return
			}
		}
	}
	// A class without a tool counts for the tools that come.
	unasked(tools.Definition{Name: "network", Class: tools.ClassNetwork, Runs: tools.PlaceHost}, "every tool of class network")
	for _, def := range defs {
		switch {
		case def.Class == tools.ClassNetwork:
			if _, named := p.Tools[string(def.Name)]; named {
				unasked(def, string(def.Name)+", which reaches the network,")
			}
		case def.Runs == tools.PlaceState: // a rule of its class is likely to mean files
			if _, named := p.Tools[string(def.Name)]; !named {
				unasked(def, string(def.Name)+", whose notes later sessions are given,")
			}
		case def.Runs == tools.PlaceHost && (def.Class == tools.ClassExecute || def.Class == tools.ClassWrite):
			unasked(def, string(def.Name)+", which changes things outside of the sandbox,")
		}
	}
	return findings
}

func checkPrompts(mode string) Finding {
	f := Finding{Check: checkOnPrompt, Result: OK, Detail: mode + ": without a terminal, what would be asked is refused"}
	switch mode {
	case "allow":
		f.Result, f.Hint = Warning, "Set on_prompt to deny, and name what may run in the policy."
		f.Detail = "allow: without a terminal, what would be asked runs without approval"
	case "fail":
		f.Detail = "fail: without a terminal, what would be asked ends the run"
	}
	return f
}

// checkTrusted returns warnings about directories in which writes run without a
// prompt, or whose own configuration is in effect.
func (c Policy) checkTrusted() []Finding {
	var findings []Finding
	for _, dir := range c.Policy.RelaxedWorkspaces {
		for _, doubt := range Doubts(dir, c.Home, c.Temporary) {
			findings = append(findings, Finding{
				Check: checkTrusted, Result: Warning, Detail: fmt.Sprintf("%s (policy.relaxed_workspaces) %s", dir, doubt),
				Hint: "Remove it, or name an existing directory that you alone can write.",
			})
		}
	}
	list, err := c.Trusted.List()
	if err != nil {
		f := damagedFile(checkTrusted, err)
		f.Advice = AdviseTrustAgain
		return append(findings, f)
	}
	for _, w := range list {
		doubts := Doubts(w.Workspace, c.Home, c.Temporary)
		if len(doubts) == 0 && !c.Covered(w) {
			doubts = []string{"has settings that differ from the trusted ones, and are not in effect"}
		}
		for _, doubt := range doubts {
			findings = append(findings, Finding{
				Check: checkTrusted, Result: Warning, Detail: fmt.Sprintf("%s, a trusted workspace, %s", w.Workspace, doubt),
				Advice: AdviseUntrust, Subject: w.Workspace,
			})
		}
	}
	return findings
}

// Doubts returns the reasons not to trust a directory.
func Doubts(dir, home string, temporary []string) []string {
	info, err := os.Stat(dir)
	if err != nil || !info.IsDir() {
		return []string{"is not a directory: any user who creates it is trusted"}
	}
	var doubts []string
	if temp := FindParent(dir, temporary); temp != "" {
		doubts = append(doubts, "is below "+temp+", where other programs and users create directories")
	}
	if info.Mode().Perm()&0o002 != 0 {
		doubts = append(doubts, "can be written by every user")
	}
	if FindParent(home, []string{dir}) != "" {
		doubts = append(doubts, "contains your home directory, so all of it is trusted")
	}
	return doubts
}

// FindParent returns the first directory that is the path or a parent of it, or
// "". An empty path has no parent.
func FindParent(path string, dirs []string) string {
	if path == "" {
		return ""
	}
	for _, dir := range dirs {
		for _, name := range []string{dir, resolveSymlinks(dir)} {
			if rel, err := filepath.Rel(name, path); err == nil && rel != ".." && !strings.HasPrefix(rel, "../") {
				return dir
			}
		}
	}
	return ""
}

func resolveSymlinks(path string) string {
	if real, err := filepath.EvalSymlinks(path); err == nil {
		return real
	}
	return path
}

// damagedFile returns a warning about a file of lasting answers that can't be
// read.
func damagedFile(check string, err error) Finding {
	if e, ok := errors.AsType[*approval.CorruptError](err); ok {
		return Finding{Check: check, Result: Warning, Detail: fmt.Sprintf("%s was damaged and counts as empty: %v. It was moved to %s", e.Path, e.Err, e.Quarantine)}
	}
	return Finding{Check: check, Result: Warning, Detail: err.Error(), Hint: "Make it a file that you can read."}
}

// checkGrants returns a warning for each stored approval without effect.
func (c Policy) checkGrants() []Finding {
	p, defs := c.Policy, c.Tools
	list, err := c.Grants.List()
	if err != nil {
		f := damagedFile(checkApprovals, err)
		if f.Hint == "" {
			f.Hint = "Read the copy; what it allowed is asked again."
		}
		return []Finding{f}
	}
	var findings []Finding
	warn := func(detail string, advice Advice, subject string) {
		findings = append(findings, Finding{Check: checkApprovals, Result: Warning, Detail: detail, Advice: advice, Subject: subject})
	}
	gone := map[string]int{}
	for _, g := range list {
		i := slices.IndexFunc(defs, func(d tools.Definition) bool { return d.Name.Same(g.Tool) })
		switch {
		case i < 0 && slices.Contains(c.serverNames(), g.Tool.Server()): // checkDefinitions reports it
		case i < 0:
			warn(fmt.Sprintf("one is stored for %s, which is not a tool", g.Tool), AdviseRevokeTool, string(g.Tool))
		case g.Decision == approval.DecisionAllow && p.Decide(defs[i], g.Workspace).Mode == policy.ModeDeny && !p.NoPrompts:
			warn(fmt.Sprintf("one allows %s in %s, which the policy denies: it has no effect", g.Tool, g.Workspace), AdviseRevokeDenied, "")
		case g.Decision == approval.DecisionAllow && isDangerous(p, g.Phrase):
			warn(fmt.Sprintf("one allows %q in %s, which the policy calls dangerous: it is still asked about each time", g.Phrase, g.Workspace), AdviseRevoke, "")
		}
		if info, err := os.Stat(g.Workspace); err != nil || !info.IsDir() {
			gone[g.Workspace]++
		}
	}
	for _, dir := range slices.Sorted(maps.Keys(gone)) {
		warn(fmt.Sprintf("%d hold for %s, which is not a directory: any user who makes it gets them", gone[dir], dir), AdviseRevokeDirectory, dir)
	}
	stored := Finding{Check: checkApprovals, Result: OK, Detail: "none are stored"}
	if len(list) > 0 {
		stored.Detail = fmt.Sprintf("%d stored", len(list))
	}
	return append([]Finding{stored}, findings...)
}

func isDangerous(p policy.Policy, phrase string) bool {
	danger, err := p.DangerousIn(phrase)
	return err == nil && danger != ""
}
