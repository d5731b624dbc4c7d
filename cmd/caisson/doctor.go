package main

import (
	"cmp"
	"context"

	"github.com/spf13/cobra"

	"github.com/caisson-run/caisson/cmd/caisson/internal/config"
	"github.com/caisson-run/caisson/runner"
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

const doctorLong = `Check the machine, the configuration, the policy, the backends, the image and the model, and start
one sandbox on an empty folder, as caisson run would, to see that it starts and that a command in it
reaches neither the network nor this machine. --quick starts none.

A warning is something to know; a failure is something that caisson run would stumble over. Both say
what mends them. No model is asked anything, and nothing is fetched.

The exit status is that of the first check that failed.
`

func newDoctorCommand(a *app) *cobra.Command {
	var settings config.File
	var profile string
	var asJSON, quick bool
	cmd := &cobra.Command{
		Use:   "doctor [flags]",
		Short: "Check what this machine can run, with cause and hint",
		Long:  doctorLong + exitHelp(nil, runner.ExitInput, runner.ExitSandboxStart, runner.ExitConfig, runner.ExitInterrupted),
		Example: `  caisson doctor
  caisson doctor --backend gvisor --image debian:bookworm-slim
  caisson doctor --quick --json | jq -r '.[] | select(.result != "ok") | .mend'`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, _, _, stop := interruptible(cmd.Context(), a.listen(), func(string) {}, a.exit)
			defer stop()
			findings := examine(ctx, a, settings, profile, quick)
			if err := interruption(ctx); err != nil {
				return err // what was found is of a machine on which nothing was allowed to end
			}
			status := runner.ExitDone
			for _, f := range findings {
				if f.Result == resultFailed && status == runner.ExitDone {
					status = f.status
				}
			}
			return cmp.Or(showFindings(a, findings, asJSON), exitWith(status))
		},
	}
	cmd.Flags().SortFlags = false
	cmd.Flags().BoolVar(&asJSON, "json", false, "write the findings as a JSON array")
	cmd.Flags().BoolVar(&quick, "quick", false, "start no sandbox")
	cmd.Flags().StringVar(&profile, "profile", "", "settings of profiles.NAME in the configuration")
	addSettings(cmd, &settings)
	return cmd
}

// examine does all checks. Without a configuration that can be read the
// others would check something else than what runs.
func examine(ctx context.Context, a *app, settings config.File, profile string, quick bool) []finding {
	findings := thisMachine().examine()
	s, err := newSetup(a.deps, a.environ, settings, profile, "")
	if err != nil {
		return append(findings, failed("configuration", err))
	}
	defer s.close()
	findings = append(findings, s.examineConfig()...)
	findings = append(findings, s.state())
	findings = append(findings, s.examinePolicy()...)
	image := s.image(ctx)
	findings = append(findings, s.model(), image, s.imageStore())
	findings = append(findings, s.examineBackends(ctx)...)
	findings = append(findings, s.leftovers(ctx))
	if quick {
		why := "not tried: --quick starts no sandbox"
		return append(findings, finding{Check: checkTrial, Result: resultAbsent, Detail: why}, finding{Check: checkNetwork, Result: resultAbsent, Detail: why})
	}
	return append(findings, s.trial(ctx, image)...)
}

func failed(check string, err error) finding {
	e := failure(err)
	return finding{Check: check, Result: resultFailed, Detail: e.Cause, Mend: e.Mend, status: e.Status}
}
