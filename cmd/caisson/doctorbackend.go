package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/caisson-run/caisson/runner"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/programs"
)

// examineBackends checks each backend. One that was asked for must work; of
// auto's, one.
func (s *setup) examineBackends(ctx context.Context) []finding {
	asked := *s.conf.Backend
	var out []finding
	usable := false
	for _, name := range backendNames {
		found := s.examineBackend(ctx, name)
		f := &found[0]
		if f.Result == resultFailed && asked != name {
			f.Result = resultAbsent
		}
		usable = usable || f.Result == resultOK && (asked == name || asked == "auto" && name != "runc")
		out = append(out, found...)
	}
	if asked == "auto" && !usable {
		out = append(out, finding{
			Check: "sandbox", Result: resultFailed, Detail: "neither docker nor gvisor can be used", status: runner.ExitSandboxStart,
			Mend: "Mend one of the two above; there is no way to run without a sandbox.",
		})
	}
	return out
}

// examineBackend gives what the backend is, and then what is wrong with it.
func (s *setup) examineBackend(ctx context.Context, name string) []finding {
	if !s.conf.Allowed(name) {
		return []finding{{Check: name, Result: resultAbsent, Detail: "the administrator's requirements do not allow it"}}
	}
	b, err := s.backends.make(name)
	if err != nil {
		return []finding{unusable(name, err)}
	}
	info, err := check(ctx, b, autoTime)
	if err != nil {
		return []finding{unusable(name, err)}
	}
	detail := info.Runtime + " " + info.RuntimeVersion
	if info.EngineVersion != "" {
		detail = "engine " + info.EngineVersion + ", runtime " + detail
	}
	if info.RuntimePath != "" {
		detail += " at " + info.RuntimePath
	}
	if info.Rootless {
		detail += ", rootless"
	}
	if len(info.Lost) > 0 {
		detail += "; not protected here: " + strings.Join(info.Lost, " ")
	}
	found := []finding{{Check: name, Result: resultOK, Detail: detail}}
	if name == "docker" && !info.Local {
		found = []finding{{Check: name, Result: resultWarning, Detail: detail + "; the engine is on another machine", Mend: "Use an engine of this machine: it must see the workspace."}}
	}
	if f, ok := advisory(name, info); ok {
		found = append(found, f)
	}
	return found
}

// unusable is a backend that can't be used, with what brings it.
func unusable(name string, err error) finding {
	f := failed(name, err)
	if e, ok := errors.AsType[*programs.NotFoundError](err); errors.Is(err, sandbox.ErrNoNamespaces) || ok && e.Name == "caisson-guest" {
		return f // what is missing is not the backend
	}
	f.Mend = map[string]string{
		"docker": "Start a Docker engine on this machine that this user may use, or name it with DOCKER_HOST; gvisor needs none.",
		"gvisor": installHint("runsc"),
		"runc":   "Install runc or crun, keep caisson-guest beside caisson, or name them under programs: in the configuration.",
	}[name]
	return f
}

// runcFixed are the first versions of runc, by release branch, in which a
// container can't redirect what runc mounts and writes while it starts
// (CVE-2025-31133, CVE-2025-52565, CVE-2025-52881; runc's CHANGELOG,
// 2025-11-05). Distributions mend older numbers, which can't be told from here.
var runcFixed = []release{{1, 2, 8, 0}, {1, 3, 3, 0}, {1, 4, 0, 3}}

// release is a version: major, minor, patch, and the number of a candidate, 0
// for none.
type release [4]int

var versionPattern = regexp.MustCompile(`(\d+)\.(\d+)\.(\d+)(?:-rc\.?(\d+))?`)

// parseVersion finds a version in what a runtime says.
func parseVersion(text string) (release, bool) {
	m := versionPattern.FindStringSubmatch(text)
	if m == nil {
		return release{}, false
	}
	var v release
	for i := range v {
		v[i], _ = strconv.Atoi(m[i+1]) // digits, or no candidate
	}
	return v, true
}

// compare orders versions; a candidate comes before its release.
func (v release) compare(o release) int {
	order := func(v release) int {
		if v[3] == 0 {
			return int(^uint(0) >> 1)
		}
		return v[3]
	}
	return cmp.Or(slices.Compare(v[:3], o[:3]), cmp.Compare(order(v), order(o)))
}

// fixed says whether a version has what the first fixed one of its branch has.
func (v release) fixed() bool {
	for _, first := range runcFixed {
		if slices.Equal(v[:2], first[:2]) {
			return v.compare(first) >= 0
		}
	}
	return v.compare(runcFixed[len(runcFixed)-1]) >= 0
}

// advisory warns of a runtime with known holes.
func advisory(backend string, info sandbox.Info) (finding, bool) {
	if info.Runtime != "runc" {
		return finding{}, false
	}
	v, ok := parseVersion(info.RuntimeVersion)
	f := finding{
		Check: backend, Result: resultWarning,
		Mend: "Install runc 1.2.8, 1.3.3, 1.4.0 or newer, unless your distribution has mended this one; until then use images that you trust, or --backend gvisor.",
	}
	switch {
	case !ok:
		f.Detail = fmt.Sprintf("runc says %q, which is no version: whether it has known holes can't be told", info.RuntimeVersion)
	case !v.fixed():
		f.Detail = fmt.Sprintf("runc %s lets an image's contents redirect what runc mounts and writes on the host (CVE-2025-31133, CVE-2025-52565, CVE-2025-52881)", info.RuntimeVersion)
	default:
		return finding{}, false
	}
	return f, true
}

// leftovers counts the sandboxes that there are, and says what is left of the
// dead.
func (s *setup) leftovers(ctx context.Context) finding {
	const check = "sandboxes"
	found, failures := s.backends.list(ctx)
	found = slices.DeleteFunc(found, others)
	live := 0
	var dead []string
	for _, l := range found {
		if l.Owner.State != "dead" && !l.GivenUp {
			live++
			continue
		}
		dead = append(dead, fmt.Sprintf("%s on %s (%s old)", l.Session, l.Backend, age(l.Since, time.Now())))
	}
	switch {
	case len(failures) > 0:
		return finding{Check: check, Result: resultWarning, Detail: "what is left of dead ones can't be told: " + strings.Join(failures, "; "), Mend: "caisson sandbox ls says more."}
	case len(dead) > 0:
		return finding{Check: check, Result: resultWarning, Detail: "left of dead ones: " + strings.Join(dead, ", "), Mend: "caisson sandbox gc removes it; so does the next run."}
	}
	return finding{Check: check, Result: resultOK, Detail: fmt.Sprintf("%d run, nothing is left of dead ones", live)}
}
