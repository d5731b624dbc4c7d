package main

import (
	"cmp"
	"context"
	"fmt"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/charmbracelet/x/ansi"
	"github.com/spf13/cobra"

	"github.com/caisson-run/caisson"
	"github.com/caisson-run/caisson/cmd/caisson/internal/config"
	"github.com/caisson-run/caisson/cmd/caisson/internal/ui"
	"github.com/caisson-run/caisson/images"
	"github.com/caisson-run/caisson/runner"
	"github.com/caisson-run/caisson/runner/doctor"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/approval"
	"github.com/caisson-run/caisson/tools/safeurl"
)

type describedFinding struct {
	doctor.Finding
	status int // the exit status of a failure
}

type doctorFlags struct {
	JSON  bool `flag:"json" doc:"write the findings as a JSON array"`
	Quick bool `flag:"quick" doc:"start no sandbox"`
	profileFlag
	Settings config.File
}

func newDoctorCommand(a *app) *cobra.Command {
	var f doctorFlags
	return newCommand(&cobra.Command{
		Use: "doctor [flags]", Short: "Check what this machine can run, with cause and hint", Args: noArgs,
		Long: `Check the machine, the configuration, the policy, the backends, the image and the model. Then start one
sandbox on an empty directory, as caisson run would: it must start, and a command in it may reach neither
the network nor this machine. The configured MCP servers are started on such a directory too. --quick
skips both.

A warning is something to know; a failure would stop caisson run. Both come with a hint. The doctor asks
no model anything and fetches nothing.

The exit status is that of the first failed check.
`,
		Example: `  caisson doctor
  caisson doctor --backend gvisor --image debian:bookworm-slim
  caisson doctor --quick --json | jq -r '.[] | select(.result != "ok") | .hint'`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, _, _, stop := a.handleInterrupts(cmd.Context(), func(string) {})
			defer stop()
			s, err := loadSettings(a, f.Settings, f.Profile)
			findings := describeFindings(runChecks(ctx, a, s, err, f.Quick))
			if err := interruption(ctx); err != nil {
				return err // the interrupted checks say nothing about the machine
			}
			status := exitDone
			for _, f := range findings {
				if f.Result == doctor.Failed && status == exitDone {
					status = f.status
				}
			}
			return cmp.Or(showFindings(a, findings, f.JSON), exitWith(status))
		},
	}, &f, usesConfig|usesInput|startsSandbox|interruptible, nil)
}

// runChecks runs all checks. err is the error of reading the settings, or nil. With one,
// runChecks stops: the other checks would not check what a run uses.
func runChecks(ctx context.Context, a *app, s *settings, err error, quick bool) []doctor.Finding {
	findings := caisson.CheckMachine()
	if err != nil {
		return append(findings, failedFinding("configuration", err))
	}
	bs, err := openBackends(s, nil)
	if err != nil {
		return append(findings, failedFinding("configuration", err))
	}
	defer bs.close()
	findings = append(findings, s.checkConfig()...)
	findings = append(findings, doctor.CheckState(s.environ.stateDir(), s.environ.temporaryDirs()))
	servers := s.findServers()
	if !quick {
		if err := startDoctorServers(ctx, a, s, servers); err != nil {
			for i := range servers {
				servers[i].Failure = err.Error()
			}
		}
	}
	findings = append(findings, s.checkPolicy(servers)...)
	image := bs.checkImage(ctx)
	findings = append(findings, s.checkModel(), image, doctor.CheckImageStore(joinUnder(s.environ.cacheDir(), "images")))
	findings = append(findings, bs.host.CheckBackends(ctx, *s.conf.Backend)...)
	findings = append(findings, bs.checkSandboxes(ctx))
	if quick {
		return append(findings, doctor.SkipSmokeTest("not tried: --quick starts no sandbox")...)
	}
	return append(findings, bs.testSandbox(ctx, image)...)
}

func failedFinding(check string, err error) doctor.Finding {
	return doctor.Finding{Check: check, Result: doctor.Failed, Err: err}
}

func warningFinding(check, detail, hint string) doctor.Finding {
	return doctor.Finding{Check: check, Result: doctor.Warning, Detail: detail, Hint: hint}
}

// checkPolicy checks the policy, and lasting approvals and trust.
func (s *settings) checkPolicy(servers []doctor.Server) []doctor.Finding {
	const check = "policy"
	p, err := s.conf.ToolPolicy("ci")
	if err != nil {
		return []doctor.Finding{failedFinding(check, err)}
	}
	detail := p.Name + " without a terminal, default on one"
	if s.conf.Policy != nil && s.conf.Policy.Preset != nil {
		detail = p.Name
	}
	if len(p.Tighten) > 0 {
		detail += ", tightened by the administrator's requirements"
	}
	findings := []doctor.Finding{{Check: check, Result: doctor.OK, Detail: detail}}
	defs, err := toolsOf(&s.conf)
	if err != nil {
		return append(findings, failedFinding("tools", err))
	}
	return append(findings, doctor.CheckPolicy(doctor.Policy{
		Policy: p, Tools: defs, OnPrompt: *s.conf.OnPrompt, Trusted: s.environ.trustStore(), Covered: s.coversSettings, Grants: s.environ.grantStore(),
		Servers: servers, Home: s.environ.home(), Temporary: s.environ.temporaryDirs(),
	})...)
}

// findServers returns a session's MCP servers. It starts none.
func (s *settings) findServers() []doctor.Server {
	used, err := s.conf.UsedServers()
	if err != nil {
		return nil // the configuration's own checks report it
	}
	var out []doctor.Server
	for _, name := range used {
		in := s.conf.MCP[name]
		one := doctor.Server{Name: name, OnHost: in.OnHost, File: s.conf.ServerSource(name)}
		if u, err := url.Parse(in.URL); err == nil && u.Scheme == "http" && !isLoopback(u.Host) {
			one.Address = safeurl.String(in.URL)
		}
		if info, err := os.Stat(one.File); err == nil && info.Mode().Perm()&0o044 != 0 {
			one.Readable = s.conf.PlainSecrets(name)
		}
		out = append(out, one)
	}
	return out
}

// startDoctorServers starts the servers on an empty directory and notes their tools.
func startDoctorServers(ctx context.Context, a *app, s *settings, servers []doctor.Server) error {
	if len(servers) == 0 {
		return nil
	}
	dir, err := os.MkdirTemp("", "caisson-doctor-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }() // it is empty
	own := *s
	b, err := openBuilder(&own, dir, projectOptions{Ignore: true})
	if err != nil {
		return err
	}
	defer b.close()
	var names []string
	for _, one := range servers {
		names = append(names, one.Name)
	}
	u := newInterface(a, false)
	defer u.close(ctx)
	tested, _, err := b.startServers(ctx, u, nil, names)
	if err != nil {
		return err
	}
	for i, one := range tested {
		if !one.Started {
			servers[i].Failure = strings.TrimSpace(one.Cause + ". " + one.hint())
			continue
		}
		servers[i].Offered = map[tools.Name]string{}
		for _, t := range one.Tools {
			servers[i].Offered[t.Name] = t.SHA256
		}
	}
	return nil
}

// coversSettings reports whether a workspace's own settings are the trusted ones.
func (s *settings) coversSettings(w approval.TrustedWorkspace) bool {
	ws, err := runner.OpenWorkspace(w.Workspace, s.environ.protectedDirs())
	if err != nil {
		return false
	}
	defer func() { _ = ws.Close() }() // only read
	own, err := readOwn(ws)
	return err == nil && w.Covers(own.files)
}

func (bs *backends) checkImage(ctx context.Context) doctor.Finding {
	const check = "image"
	ref, err := images.ParseLocalReference(*bs.conf.Image)
	if err != nil {
		return failedFinding(check, err)
	}
	if !bs.conf.Requirements.AllowsImage(ref.String()) {
		return doctor.Finding{
			Check: check, Result: doctor.Failed, Fault: doctor.FaultConfiguration, Detail: ref.String() + " is not allowed on this machine",
			Hint: "Choose what the administrator's file allows.",
		}
	}
	f := bs.host.CheckImage(ctx, ref)
	f.Err = imageFailure(f.Err)
	if f.Advice == doctor.AdviseToolchains {
		f.Hint = "Add this to the configuration, or use an image that has them: " + bs.toolchainLine(strings.Split(f.Subject, "\n"))
	}
	if rest, ok := strings.CutPrefix(f.Detail, ref.String()); ok && f.Result == doctor.OK {
		f.Detail = *bs.conf.Image + rest // as the user wrote it
	}
	return f
}

// checkSandboxes lists this user's sandboxes whose owners are dead.
func (bs *backends) checkSandboxes(ctx context.Context) doctor.Finding {
	found, failures := bs.listSandboxes(ctx)
	return doctor.CheckLeftovers(slices.DeleteFunc(found, isForeign), failures, time.Now())
}

func (bs *backends) testSandbox(ctx context.Context, image doctor.Finding) []doctor.Finding {
	ref, err := images.ParseLocalReference(*bs.conf.Image)
	if err != nil {
		return doctor.SkipSmokeTest("not tried: the image is not here, see above")
	}
	resources, err := bs.conf.SandboxResources()
	if err != nil {
		return []doctor.Finding{failedFinding("sandbox start", err)}
	}
	target, err := bs.mountPoint(ctx, ref)
	if err != nil {
		return []doctor.Finding{failedFinding("sandbox start", err)}
	}
	if err := bs.host.CheckUser(ctx, ref, sandbox.UserPolicy(*bs.conf.User)); err != nil {
		return []doctor.Finding{failedFinding("sandbox start", err)}
	}
	reach, _, err := bs.conf.EgressOptions() // its error is the configuration's finding
	return doctor.SmokeTest{
		Setup: bs.conf.SandboxSetup(ref, resources), ImageOK: image.Result == doctor.OK, Mode: sandbox.WorkspaceMode(*bs.conf.Mode), Target: target,
		RefuseLost: *bs.conf.RefuseLost, StateDir: bs.environ.stateDir(), Egress: err == nil && reach.Policy != nil,
		Choose: func(ctx context.Context) (sandbox.Backend, []string, error) {
			var notes []string
			b, _, err := bs.host.Choose(ctx, *bs.conf.Backend, func(note string) { notes = append(notes, note) })
			return b, notes, err
		},
	}.Run(ctx)
}

func describeFindings(findings []doctor.Finding) []describedFinding {
	out := make([]describedFinding, 0, len(findings))
	for _, f := range findings {
		out = append(out, describeFinding(f))
	}
	return out
}

func describeFinding(f doctor.Finding) describedFinding {
	out := describedFinding{Finding: f}
	switch f.Fault {
	case doctor.FaultSandbox:
		out.status = exitSandboxStart
	case doctor.FaultConfiguration:
		out.status = exitConfig
	}
	hint := f.Hint
	if hint == "" {
		hint = describeAdvice(f)
	}
	if f.Err != nil {
		e := describeError(f.Err)
		out.Detail, hint = cmp.Or(f.Detail, e.Cause), cmp.Or(hint, e.Hint)
		out.status = max(out.status, e.Status)
	}
	out.Detail, out.Hint = safeurl.InText(out.Detail), safeurl.InText(hint)
	return out
}

func describeAdvice(f doctor.Finding) string {
	if f.Advice == doctor.AdviseBackend {
		return map[string]string{
			"docker": "Start a Docker engine on this machine that this user may use, or name it with DOCKER_HOST; gvisor needs none.",
			"gvisor": installHint("runsc"),
			"runc":   "Install runc or crun, keep caisson-guest beside caisson, or name them under programs: in the configuration.",
		}[f.Subject]
	}
	return hintFor(f.Advice, f.Subject)
}

// The columns of a finding: its result, check and text. All lines of the text begin in
// the third.
const (
	resultWidth = 8
	checkWidth  = 15
	indent      = resultWidth + 1 + checkWidth + 1
)

var resultColours = map[doctor.Result]string{doctor.OK: "32", doctor.Warning: "33", doctor.Failed: "1;31", doctor.Absent: "2"}

// showFindings writes the findings as text or JSON. On a terminal it wraps lines and
// colours results.
func showFindings(a *app, findings []describedFinding, asJSON bool) error {
	if asJSON {
		return writeJSON(a.stdout, findings)
	}
	width := 0
	colour := false
	if a.terminal(a.stdout) {
		width, _ = a.size()
		width = max(width, indent+20)
		colour = a.environ.get("NO_COLOR") == "" && a.environ.get("TERM") != "dumb"
	}
	var out strings.Builder
	counts := map[doctor.Result]int{}
	for _, f := range findings {
		counts[f.Result]++
		word := fmt.Sprintf("%-*s", resultWidth, f.Result)
		if colour {
			word = "\x1b[" + resultColours[f.Result] + "m" + word + "\x1b[0m"
		}
		fmt.Fprintf(&out, "%s %-*s %s\n", word, checkWidth, f.Check, indentText(f.Detail, "", width))
		if f.Hint != "" {
			fmt.Fprintf(&out, "%*s%s\n", indent, "", indentText(f.Hint, "→ ", width))
		}
	}
	fmt.Fprintf(&out, "\n%s\n", summarizeResults(counts))
	_, err := fmt.Fprint(a.stdout, out.String())
	return err
}

// indentText makes text safe to show and wraps it at width, unless that is 0, so that
// it stays in its column, after begin.
func indentText(text, begin string, width int) string {
	safe := begin + makeSafe(text)
	if width == 0 {
		return safe
	}
	lines := ui.WrapWords(safe, width-indent, strings.Repeat(" ", ansi.StringWidth(begin)))
	return strings.Join(lines, "\n"+strings.Repeat(" ", indent))
}

func summarizeResults(counts map[doctor.Result]int) string {
	text := fmt.Sprintf("%d ok, %d warnings, %d failed", counts[doctor.OK], counts[doctor.Warning], counts[doctor.Failed])
	if counts[doctor.Warning] == 1 {
		text = strings.Replace(text, "warnings", "warning", 1)
	}
	switch {
	case counts[doctor.Failed] > 0:
		return text + ": fix what failed before you run anything."
	case counts[doctor.Warning] > 0:
		return text + ": caisson run works here; read the warnings."
	}
	return text + ": caisson run works here."
}
