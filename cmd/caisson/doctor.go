package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"

	"github.com/spf13/cobra"

	"github.com/caisson-run/caisson/cmd/caisson/internal/config"
	"github.com/caisson-run/caisson/runner"
	"github.com/caisson-run/caisson/tools"
)

// finding is one check's answer.
type finding struct {
	Check  string `json:"check"`
	Result string `json:"result"` // ok, warning, failed, absent
	Detail string `json:"detail"`
	Mend   string `json:"mend,omitempty"`
	status int
}

// The results. Absent is what is not here and needn't be.
const (
	resultOK      = "ok"
	resultWarning = "warning"
	resultFailed  = "failed"
	resultAbsent  = "absent"
)

func newDoctorCommand(d deps, env environ, status *int) *cobra.Command {
	var settings config.File
	var profile string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "doctor [flags]",
		Short: "Check what this machine can run, with cause and mend",
		Long: "Check the machine, the configuration, the backends, the image and the model. No sandbox is\n" +
			"started. The exit status is that of the first check that failed.\n" +
			exitHelp(runner.ExitDone, runner.ExitUsage, runner.ExitSandboxStart, runner.ExitConfig),
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			findings := examine(cmd.Context(), d, env, settings, profile)
			for _, f := range findings {
				if f.Result == resultFailed && *status == 0 {
					*status = f.status
				}
			}
			return showFindings(d, findings, asJSON)
		},
	}
	cmd.Flags().SortFlags = false
	cmd.Flags().BoolVar(&asJSON, "json", false, "write the findings as JSON")
	cmd.Flags().StringVar(&profile, "profile", "", "settings of profiles.NAME in the configuration")
	addSettings(cmd, &settings)
	return cmd
}

// examine does all checks. Without a configuration that can be read the
// others would check something else than what runs.
func examine(ctx context.Context, d deps, env environ, settings config.File, profile string) []finding {
	findings := []finding{system()}
	s, err := newSetup(d, env, settings, profile, "")
	if err != nil {
		return append(findings, failed("configuration", err))
	}
	defer s.close()
	var names []string
	for _, src := range s.conf.Sources {
		names = append(names, strings.TrimSpace(src.Name+" "+src.Path))
	}
	findings = append(findings, finding{Check: "configuration", Result: resultOK, Detail: strings.Join(names, ", ")})
	findings = append(findings, s.state(), s.policy(), s.model())
	findings = append(findings, s.image(ctx), s.imageStore())
	return append(findings, s.examineBackends(ctx)...)
}

func system() finding {
	detail := fmt.Sprintf("%s/%s, %s, uid %d", runtime.GOOS, runtime.GOARCH, kernel(), os.Geteuid())
	if runtime.GOOS != "linux" {
		return finding{Check: "system", Result: resultWarning, Detail: detail, Mend: "Only the docker backend works here."}
	}
	return finding{Check: "system", Result: resultOK, Detail: detail}
}

func kernel() string {
	text, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		return "kernel unknown"
	}
	return "kernel " + strings.TrimSpace(string(text))
}

func (s *setup) state() finding {
	dir := s.environ.stateDir()
	if err := runner.CheckStateDir(dir); err != nil {
		return failed("state folder", err)
	}
	return finding{Check: "state folder", Result: resultOK, Detail: dir}
}

func (s *setup) policy() finding {
	p, err := s.conf.ToolPolicy("ci")
	if err != nil {
		return failed("policy", err)
	}
	detail := p.Name + " without a terminal, default on one"
	if s.conf.Policy != nil && s.conf.Policy.Preset != nil {
		detail = p.Name
	}
	if len(p.Tighten) > 0 {
		detail += ", tightened by the administrator's requirements"
	}
	return finding{Check: "policy", Result: resultOK, Detail: detail}
}

func (s *setup) model() finding {
	m, err := s.conf.SelectModel(s.environ)
	if err != nil {
		f := failed("model", noModel(err))
		f.Result = resultWarning
		return f
	}
	detail := m.Provider + "/" + m.Name
	if m.BaseURL != "" {
		detail += " at " + m.BaseURL
	}
	if m.KeyNeeded && m.APIKey == "" {
		return finding{Check: "model", Result: resultWarning, Detail: detail + ": " + m.KeyEnv + " is not set", Mend: "Set it to your key."}
	}
	if m.Provider == "openai" && m.Price == nil {
		detail += "; its price is unknown, so cost is too"
	}
	return finding{Check: "model", Result: resultOK, Detail: detail}
}

// examineBackends checks each backend. One that was asked for must work; of
// auto's, one.
func (s *setup) examineBackends(ctx context.Context) []finding {
	asked := *s.conf.Backend
	var out []finding
	usable := false
	for _, name := range config.Backends()[1:] {
		f := s.examineBackend(ctx, name)
		if f.Result == resultFailed && asked != name {
			f.Result = resultAbsent
		}
		usable = usable || f.Result == resultOK && (asked == name || asked == "auto" && name != "runc")
		out = append(out, f)
	}
	if asked == "auto" && !usable {
		out = append(out, finding{
			Check: "sandbox", Result: resultFailed, Detail: "neither docker nor gvisor can be used", status: runner.ExitSandboxStart,
			Mend: "Mend one of the two above; there is no way to run without a sandbox.",
		})
	}
	return out
}

func (s *setup) examineBackend(ctx context.Context, name string) finding {
	if !s.conf.Allowed(name) {
		return finding{Check: name, Result: resultAbsent, Detail: "the administrator's requirements do not allow it"}
	}
	b, err := s.backends.make(name)
	if err != nil {
		return failed(name, err)
	}
	info, err := s.backends.check(ctx, b)
	if err != nil {
		return failed(name, err)
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
		detail += "; not protected here: " + strings.Join(info.Lost, "; ")
	}
	if name == "docker" && !info.Local {
		return finding{Check: name, Result: resultWarning, Detail: detail + "; the engine is on another machine", Mend: "Use an engine of this machine: it must see the workspace."}
	}
	return finding{Check: name, Result: resultOK, Detail: detail}
}

func failed(check string, err error) finding {
	e := failure(err)
	return finding{Check: check, Result: resultFailed, Detail: e.Cause, Mend: e.Mend, status: e.Status}
}

// showFindings writes the findings for people, or as JSON.
func showFindings(d deps, findings []finding, asJSON bool) error {
	if asJSON {
		enc := json.NewEncoder(d.stdout)
		enc.SetIndent("", "  ")
		return enc.Encode(findings)
	}
	var errs []error
	for _, f := range findings {
		detail, _ := tools.Display(f.Detail)
		_, err := fmt.Fprintf(d.stdout, "%-8s %-14s %s\n", f.Result, f.Check, detail)
		errs = append(errs, err)
		if f.Mend != "" {
			mend, _ := tools.Display(f.Mend)
			_, err := fmt.Fprintf(d.stdout, "%23s → %s\n", "", mend)
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
