package main

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/caisson-run/caisson/runner"
	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/approval"
	"github.com/caisson-run/caisson/tools/policy"
)

// The checks of what may run.
const (
	checkPolicy    = "policy"
	checkOnPrompt  = "on_prompt"
	checkTrusted   = "trusted folder"
	checkApprovals = "approvals"
)

// examinePolicy says what would run unasked, and which rules do nothing.
func (s *setup) examinePolicy() []finding {
	p, err := s.conf.ToolPolicy("ci")
	if err != nil {
		return []finding{failed(checkPolicy, err)}
	}
	findings := []finding{s.policyFinding(p)}
	defs, err := toolsOf(&s.conf)
	if err != nil {
		return append(findings, failed("tools", err))
	}
	findings = append(findings, toolsFinding(defs))
	findings = append(findings, ruleFindings(p, defs)...)
	if note := describeNotBinding(p, defs); note != "" {
		findings = append(findings, finding{Check: checkPolicy, Result: resultWarning, Detail: note, Mend: notBindingHint})
	}
	findings = append(findings, askFindings(p, defs)...)
	findings = append(findings, promptFinding(*s.conf.OnPrompt))
	findings = append(findings, s.folderFindings(p)...)
	return append(findings, s.grantFindings(p, defs)...)
}

func (s *setup) policyFinding(p policy.Policy) finding {
	detail := p.Name + " without a terminal, default on one"
	if s.conf.Policy != nil && s.conf.Policy.Preset != nil {
		detail = p.Name
	}
	if len(p.Tighten) > 0 {
		detail += ", tightened by the administrator's requirements"
	}
	return finding{Check: checkPolicy, Result: resultOK, Detail: detail}
}

func toolsFinding(defs []tools.Definition) finding {
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
	return finding{Check: "tools", Result: resultOK, Detail: detail}
}

// ruleFindings are about rules that do nothing: a misspelt deny protects
// nothing.
func ruleFindings(p policy.Policy, defs []tools.Definition) []finding {
	var findings []finding
	for _, key := range p.Unmatched(defs) {
		f := finding{Check: checkPolicy, Result: resultWarning, Detail: fmt.Sprintf("the rule for %q matches no tool and does nothing", key), Mend: "Take it out of policy.tools; the tools are " + names(defs) + "."}
		if near := nearest(key, defs); near != "" {
			f.Mend = fmt.Sprintf("Write %s, if that is meant; otherwise take it out of policy.tools.", near)
		}
		findings = append(findings, f)
	}
	keys := slices.Sorted(maps.Keys(p.Tools))
	for i, key := range keys {
		for _, other := range keys[i+1:] {
			if tools.Name(key).Same(tools.Name(other)) {
				findings = append(findings, finding{
					Check: checkPolicy, Result: resultWarning, Mend: "Keep one of the two in policy.tools.",
					Detail: fmt.Sprintf("%q (%s) and %q (%s) are two spellings of one tool: a deny of either counts, otherwise the one with a slash", key, p.Tools[key], other, p.Tools[other]),
				})
			}
		}
	}
	if len(p.TrustedOverrides) > 0 && len(p.TrustedWorkspaces) == 0 {
		findings = append(findings, finding{
			Check: checkPolicy, Result: resultWarning, Detail: "trusted_workspace_overrides has no effect: no workspace is trusted",
			Mend: "Name folders under policy.trusted_workspaces, or take the overrides out.",
		})
	}
	return findings
}

// notBindingHint says how commands are kept from changing files.
const notBindingHint = "Set execute: deny under policy.default, where commands must not change files either."

// describeNotBinding names the tools whose restrictions don't keep commands from
// doing the same; "" where there are none.
func describeNotBinding(p policy.Policy, defs []tools.Definition) string {
	var restricted []string
	for _, name := range p.NotBinding(defs, "") {
		restricted = append(restricted, string(name))
	}
	if len(restricted) == 0 {
		return ""
	}
	return "the restriction of " + strings.Join(restricted, ", ") + " does not bind commands: shell can change and delete the same files"
}

func names(defs []tools.Definition) string {
	var all []string
	for _, d := range defs {
		all = append(all, string(d.Name))
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}

// nearest is the tool that a misspelt name is likely to mean, "" where none is
// like it: at most a third of its letters are wrong.
func nearest(key string, defs []tools.Definition) string {
	var names []string
	for _, d := range defs {
		names = append(names, string(d.Name))
	}
	return nearestWord(key, names)
}

// nearestWord returns the word that a misspelt one is likely to mean, "" where
// none is like it: at most a third of its letters are wrong.
func nearestWord(misspelt string, words []string) string {
	best, least := "", max(len(misspelt)/3, 1)+1
	for _, w := range words {
		if n := distance(strings.ToLower(misspelt), strings.ToLower(w)); n < least {
			best, least = w, n
		}
	}
	return best
}

// distance returns the number of letters to put in, take out, change, or swap
// with the next one.
func distance(a, b string) int {
	var last []int // the row before row
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		next := make([]int, len(b)+1)
		next[0] = i + 1
		for j := range len(b) {
			change := row[j]
			if a[i] != b[j] {
				change++
			}
			next[j+1] = min(change, next[j]+1, row[j+1]+1)
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				next[j+1] = min(next[j+1], last[j-1]+1)
			}
		}
		last, row = row, next
	}
	return row[len(b)]
}

// askFindings are about what leaves the sandbox unasked.
func askFindings(p policy.Policy, defs []tools.Definition) []finding {
	var findings []finding
	unasked := func(def tools.Definition, what string) {
		for _, where := range []string{"", "trusted"} {
			workspace := ""
			if where != "" && len(p.TrustedWorkspaces) > 0 {
				workspace = p.TrustedWorkspaces[0]
			}
			if v := p.Decide(def, workspace); v.Mode == policy.ModeAuto {
				findings = append(findings, finding{
					Check: checkPolicy, Result: resultWarning, Detail: fmt.Sprintf("%s runs without asking (%s)", what, v.Rule),
					Mend: "Make it prompt or deny, unless what it can reach is bounded otherwise.",
				})
				return
			}
		}
	}
	// A class that no tool has yet counts for the tools that come.
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

// promptFinding says what becomes of a question that nobody can be asked.
func promptFinding(mode string) finding {
	f := finding{Check: checkOnPrompt, Result: resultOK, Detail: mode + ": without a terminal, what would be asked is refused"}
	switch mode {
	case "allow":
		f.Result, f.Mend = resultWarning, "Set on_prompt to deny, and name what may run in the policy."
		f.Detail = "allow: without a terminal, what would be asked runs although nobody approved it"
	case "fail":
		f.Detail = "fail: without a terminal, what would be asked ends the run"
	}
	return f
}

// folderFindings are about folders in which writes are not asked about, and
// those whose own configuration counts.
func (s *setup) folderFindings(p policy.Policy) []finding {
	var findings []finding
	for _, folder := range p.TrustedWorkspaces {
		for _, why := range doubts(folder, s.environ) {
			findings = append(findings, finding{
				Check: checkTrusted, Result: resultWarning, Detail: fmt.Sprintf("%s (policy.trusted_workspaces) %s", folder, why),
				Mend: "Take it out, or name a folder that is there and that you alone can write.",
			})
		}
	}
	list, err := s.environ.trustStore().List()
	if err != nil {
		return append(findings, corrupt(checkTrusted, err, "caisson trust stores anew what you trust."))
	}
	for _, w := range list {
		why := doubts(w.Workspace, s.environ)
		if len(why) == 0 && !s.covered(w) {
			why = []string{"has other settings than those that were trusted, so that they don't count"}
		}
		for _, text := range why {
			findings = append(findings, finding{
				Check: checkTrusted, Result: resultWarning, Detail: fmt.Sprintf("%s (caisson trust) %s", w.Workspace, text),
				Mend: "caisson untrust " + w.Workspace + " forgets it; caisson trust looks at it again.",
			})
		}
	}
	return findings
}

// covered says whether a workspace's own settings are those that were trusted.
func (s *setup) covered(w approval.TrustedWorkspace) bool {
	ws, err := runner.OpenWorkspace(w.Workspace, s.environ.protected())
	if err != nil {
		return false
	}
	defer ws.Close() //nolint:errcheck // only read
	own, err := readOwn(ws)
	return err == nil && w.Covers(own.files)
}

// doubts says why a folder should not be trusted.
func doubts(folder string, env environ) []string {
	info, err := os.Stat(folder)
	if err != nil || !info.IsDir() {
		return []string{"is no folder: whoever makes it is trusted"}
	}
	var why []string
	if temp := below(folder, temporary(env)); temp != "" {
		why = append(why, "is below "+temp+", where other programs and users make folders")
	}
	if info.Mode().Perm()&0o002 != 0 {
		why = append(why, "can be written by everybody")
	}
	if below(env.home(), []string{folder}) != "" {
		why = append(why, "holds your home folder, so that all that is in it is trusted")
	}
	return why
}

// temporary are the folders for temporary files.
func temporary(env environ) []string {
	dirs := []string{"/tmp", "/var/tmp", "/dev/shm"}
	if dir := absolute(env.get("TMPDIR")); dir != "" {
		dirs = append(dirs, dir)
	}
	return dirs
}

// below gives the first folder at or below which a path is, "" for none; an
// empty path is below nothing.
func below(path string, folders []string) string {
	if path == "" {
		return ""
	}
	for _, folder := range folders {
		for _, name := range []string{folder, resolved(folder)} {
			if rel, err := filepath.Rel(name, path); err == nil && rel != ".." && !strings.HasPrefix(rel, "../") {
				return folder
			}
		}
	}
	return ""
}

func resolved(path string) string {
	if real, err := filepath.EvalSymlinks(path); err == nil {
		return real
	}
	return path
}

// corrupt is a file of lasting answers that could not be read.
func corrupt(check string, err error, mend string) finding {
	if e, ok := errors.AsType[*approval.CorruptError](err); ok {
		return finding{Check: check, Result: resultWarning, Detail: fmt.Sprintf("%s was damaged and counts as empty: %v; it is now %s", e.Path, e.Err, e.Quarantine), Mend: "Look at what it holds; " + mend}
	}
	return finding{Check: check, Result: resultWarning, Detail: err.Error(), Mend: "Make it a file that you can read."}
}

// grantFindings are about stored approvals that do nothing any more.
func (s *setup) grantFindings(p policy.Policy, defs []tools.Definition) []finding {
	list, err := s.environ.grantStore().List()
	if err != nil {
		return []finding{corrupt(checkApprovals, err, "what it allowed is asked again.")}
	}
	var findings []finding
	warn := func(detail, mend string) {
		findings = append(findings, finding{Check: checkApprovals, Result: resultWarning, Detail: detail, Mend: mend})
	}
	gone := map[string]int{}
	for _, g := range list {
		i := slices.IndexFunc(defs, func(d tools.Definition) bool { return d.Name.Same(g.Tool) })
		switch {
		case i < 0:
			warn(fmt.Sprintf("one is stored for %s, which is no tool", g.Tool), fmt.Sprintf("caisson approvals revoke --tool %s removes it.", g.Tool))
		case g.Decision == approval.DecisionAllow && p.Decide(defs[i], g.Workspace).Mode == policy.ModeDeny && !p.NoPrompts:
			warn(fmt.Sprintf("one allows %s in %s, which the policy denies: it has no effect", g.Tool, g.Workspace), "Change the policy, or revoke it with caisson approvals revoke.")
		case g.Decision == approval.DecisionAllow && isDangerous(p, g.Phrase):
			warn(fmt.Sprintf("one allows %q in %s, which the policy calls dangerous: it is asked about each time all the same", g.Phrase, g.Workspace), "Revoke it with caisson approvals revoke.")
		}
		if info, err := os.Stat(g.Workspace); err != nil || !info.IsDir() {
			gone[g.Workspace]++
		}
	}
	for _, folder := range slices.Sorted(maps.Keys(gone)) {
		warn(fmt.Sprintf("%d hold for %s, which is no folder: whoever makes it gets them", gone[folder], folder), "caisson approvals revoke removes them.")
	}
	return append([]finding{{Check: checkApprovals, Result: resultOK, Detail: cmp.Or(counted(len(list)), "none are stored")}}, findings...)
}

func isDangerous(p policy.Policy, phrase string) bool {
	danger, err := p.DangerousIn(phrase)
	return err == nil && danger != ""
}

func counted(n int) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprintf("%d stored", n)
}
