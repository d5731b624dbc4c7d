package doctor

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"sync"
	"time"

	"golang.org/x/mod/semver"

	"github.com/caisson-run/caisson/runner"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/programs"
)

const checkTime = 5 * time.Second

// Backends are the backends to check.
type Backends struct {
	// Names are in the order of the findings. Asked is one of them, or "auto".
	Names []string
	Asked string
	// Allowed reports whether the administrator allows a backend. Open returns
	// it.
	Allowed func(name string) bool
	Open    func(name string) (sandbox.Backend, error)
}

// CheckBackends checks each backend. The one that was asked for must work, or,
// with auto, at least one that auto chooses from.
func CheckBackends(ctx context.Context, b Backends) []Finding {
	var out []Finding
	usable := false
	for _, name := range b.Names {
		found := b.check(ctx, name)
		f := &found[0]
		if f.Result == Failed && b.Asked != name {
			f.Result = Absent
			if name == "runc" && errors.Is(f.Err, sandbox.ErrNoNamespaces) { // the hint is beside the namespaces
				f.Detail, f.Err = f.Err.Error(), nil
			}
		}
		usable = usable || f.Result == OK && (b.Asked == name || b.Asked == "auto" && name != "runc")
		out = append(out, found...)
	}
	if b.Asked == "auto" && !usable {
		out = append(out, Finding{
			Check: "sandbox", Result: Failed, Detail: "neither docker nor gvisor can be used", Fault: FaultSandbox,
			Hint: "Fix one of the two above; nothing runs without a sandbox.",
		})
	}
	return out
}

// check returns a finding about the backend, and one for each problem with it.
func (b Backends) check(ctx context.Context, name string) []Finding {
	if !b.Allowed(name) {
		return []Finding{{Check: name, Result: Absent, Detail: "the administrator's requirements do not allow it"}}
	}
	backend, err := b.Open(name)
	if err != nil {
		return []Finding{unusableBackend(name, err)}
	}
	info, err := queryBackend(ctx, backend)
	if err != nil {
		return []Finding{unusableBackend(name, err)}
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
	if info.Isolation == sandbox.IsolationProcess {
		detail += ", without namespaces"
	}
	if info.NoNamespaces != "" {
		detail += ", because " + info.NoNamespaces
	}
	if info.Remapped {
		detail += ", with userns-remap"
	}
	if len(info.Lost) > 0 {
		detail += "; not protected here: " + strings.Join(info.Lost, " ")
	}
	found := []Finding{{Check: name, Result: OK, Detail: detail}}
	if name == "docker" && !info.Local {
		found = []Finding{{Check: name, Result: Warning, Detail: detail + "; the engine is on another machine", Hint: "Use mode copy, which sends the workspace, or an engine of this machine."}}
	}
	if f, ok := checkAdvisories(name, info); ok {
		found = append(found, f)
	}
	return found
}

func queryBackend(ctx context.Context, b sandbox.Backend) (sandbox.Info, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, checkTime, fmt.Errorf("no answer in %s", checkTime))
	defer cancel()
	return b.Check(ctx)
}

func unusableBackend(name string, err error) Finding {
	f := failed(name, err)
	f.Advice, f.Subject = AdviseBackend, name
	if e, ok := errors.AsType[*programs.NotFoundError](err); errors.Is(err, sandbox.ErrNoNamespaces) || ok && e.Name == "caisson-guest" {
		f.Advice = "" // the backend itself is not missing
	}
	if hint := runner.ProgramHint(err); hint != "" {
		f.Advice, f.Hint = "", hint
	}
	return f
}

// runcFixed are the first versions of runc, by release branch, in which a
// container can't redirect what runc mounts and writes while it starts
// (CVE-2025-31133, CVE-2025-52565, CVE-2025-52881; runc's CHANGELOG,
// 2025-11-05). Distributions fix older versions without a new number.
var runcFixed = []string{"v1.2.8", "v1.3.3", "v1.4.0-rc.3"}

var versionPattern = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`(\d+\.\d+\.\d+)(?:-rc\.?(\d+))?`)
})

// parseVersion returns the version in a runtime's text as package semver writes
// it, or "".
func parseVersion(text string) string {
	m := versionPattern().FindStringSubmatch(text)
	switch {
	case m == nil:
		return ""
	case m[2] != "":
		return "v" + m[1] + "-rc." + m[2]
	}
	return "v" + m[1]
}

func isFixed(v string) bool {
	first := runcFixed[len(runcFixed)-1]
	for _, f := range runcFixed {
		if semver.MajorMinor(v) == semver.MajorMinor(f) {
			first = f
		}
	}
	return semver.Compare(v, first) >= 0
}

func checkAdvisories(backend string, info sandbox.Info) (Finding, bool) {
	if info.Runtime != "runc" {
		return Finding{}, false
	}
	v := parseVersion(info.RuntimeVersion)
	f := Finding{
		Check: backend, Result: Warning,
		Advice: AdviseRuncUpdate,
	}
	switch {
	case v == "":
		f.Detail = fmt.Sprintf("runc reports the version %q, which is none: it may have known vulnerabilities", info.RuntimeVersion)
	case !isFixed(v):
		f.Detail = fmt.Sprintf("runc %s lets an image's contents redirect what runc mounts and writes on the host (CVE-2025-31133, CVE-2025-52565, CVE-2025-52881)", info.RuntimeVersion)
	default:
		return Finding{}, false
	}
	return f, true
}

// CheckLeftovers counts this user's sandboxes and lists the ones of dead
// owners. failures are the backends' errors.
func CheckLeftovers(found []sandbox.Listing, failures []string, now time.Time) Finding {
	const check = "sandboxes"
	live := 0
	var dead []string
	for _, l := range found {
		if l.Owner.State != "dead" && !l.GivenUp {
			live++
			continue
		}
		dead = append(dead, fmt.Sprintf("%s on %s (%s old)", l.Session, l.Backend, FormatAge(l.Since, now)))
	}
	switch {
	case len(failures) > 0:
		return Finding{Check: check, Result: Warning, Detail: "sandboxes of dead owners are unknown: " + strings.Join(failures, "; "), Advice: AdviseListSandboxes}
	case len(dead) > 0:
		return Finding{Check: check, Result: Warning, Detail: "left by dead owners: " + strings.Join(dead, ", "), Advice: AdviseCollect}
	}
	return Finding{Check: check, Result: OK, Detail: fmt.Sprintf("%d running, nothing left by dead owners", live)}
}
