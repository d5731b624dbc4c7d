package ui

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/sandbox"
)

func (v *view) addCreated(p record.SessionCreated) []string {
	lines := []string{
		v.style.bold("caisson "+safeLine(p.Version)) + v.style.dim(fmt.Sprintf(" · %s on %s · policy %s · %s",
			safeLine(p.Model.String()), safeLine(p.Workspace), safeLine(p.Policy), safeLine(boundsText(p)))),
		v.style.dim(fmt.Sprintf("sandbox %s (%s), image %s", safeLine(cmp.Or(p.Backend.Chosen, "none")), safeLine(shortReason(p.Backend.Why)), safeLine(p.Image))),
	}
	if v.began { // another session of the chat
		lines = append([]string{""}, lines...)
	}
	v.egress = p.Egress
	if v.began = true; p.Backend.Chosen == "" {
		v.sandbox = "none"
	}
	if p.WorkspaceMode == "overlay" && !v.chat {
		lines = append(lines, v.style.dim("changes go to an overlay: the workspace stays as it is until caisson apply"))
	}
	for _, f := range p.FilesLoaded {
		part := ""
		if f.Truncated {
			part = "the beginning of "
		}
		lines = append(lines, v.style.dim(fmt.Sprintf("the model gets %s%s (%d bytes, as %s)", part, safeLine(f.Path), f.Bytes, trustWords(f.Trust))))
	}
	for _, i := range p.Ignored {
		lines = append(lines, v.style.yellow("! "+safeLine(i.Name)+" is ignored: "+safeLine(i.Why)))
	}
	for _, l := range p.Removed {
		lines = append(lines, v.style.yellow(safeLine(fmt.Sprintf("! removed what a dead caisson (%s) left: %s %s", l.Owner, l.Kind, l.Name))))
	}
	return lines
}

// trustWords describes a file's trust.
func trustWords(trust string) string {
	switch trust {
	case "operator":
		return "your instructions"
	case "trusted":
		return "instructions that you trust"
	}
	return "untrusted data; to make it instructions, run caisson trust"
}

// shortReason leaves out an error's detail, which the records and the doctor have.
func shortReason(why string) string {
	short, detail, _ := strings.Cut(why, ": ")
	if detail == "" {
		return why
	}
	return short + "; caisson doctor has the reason"
}

func boundsText(p record.SessionCreated) string {
	var parts []string
	if p.Budget.Rounds != nil {
		parts = append(parts, "at most "+limits.FormatCount(int(*p.Budget.Rounds), "round"))
	}
	if p.Budget.WallTimeMS != nil {
		parts = append(parts, formatElapsed(time.Duration(*p.Budget.WallTimeMS)*time.Millisecond))
	}
	return strings.Join(parts, ", ")
}

// addAttested describes the attested container in one line.
func (v *view) addAttested(a sandbox.Attestation, how string) []string {
	v.sandbox = a.Backend
	caps := "no capabilities"
	if len(a.Capabilities) > 0 {
		caps = "capabilities " + strings.Join(a.Capabilities, ", ")
	}
	memory := "memory not limited"
	if a.Limits.MemoryBytes > 0 {
		memory = fmt.Sprintf("%d MiB", a.Limits.MemoryBytes>>20)
	}
	processes := "processes not limited"
	if a.Limits.PIDs > 0 {
		processes = fmt.Sprintf("%d pids", a.Limits.PIDs)
	}
	version := a.RuntimeVersion
	if a.Isolation == sandbox.IsolationProcess {
		version += " without namespaces"
	}
	head := fmt.Sprintf("● sandbox started %s: %s %s, commands as %s with %s, seccomp %s, network: %s, %s, %s",
		how, a.Runtime, version, a.User, caps, a.Seccomp, v.egress.Words(a.Network), memory, processes)
	return append([]string{v.style.cyan(safeLine(head))}, v.lostLines(a)...)
}

// lostLines warns about protections that the sandbox lacks.
func (v *view) lostLines(a sandbox.Attestation) []string {
	var lines []string
	for _, l := range v.untold(a.Workspace, a.Lost) {
		lines = append(lines, v.style.yellow("! not protected here: "+safeLine(l)))
	}
	return lines
}
