package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/caisson-run/caisson/cmd/caisson/internal/config"
	"github.com/caisson-run/caisson/runner/redact"
	"github.com/caisson-run/caisson/runner/trace"
)

func newTraceExportCommand(a *app) *cobra.Command {
	var f struct {
		Format string `flag:"format" default:"jsonl" doc:"jsonl, json or atif"`
		Output string `flag:"output,o" doc:"file to write (default: standard output)"`
	}
	return newCommand(&cobra.Command{
		Use: "export [flags] SESSION", Short: "Write a session as JSON lines, JSON or an ATIF trajectory", Args: oneSession,
		Long: `Write a session for other programs.

  jsonl   its records as they are, one per line
  json    one JSON array of them
  atif    a trajectory of the Agent Trajectory Interchange Format (ATIF v1.7), which
          caisson run --model replay/FILE plays again

Keys that the environment and the configuration name are replaced again, and so is text with the shape
of a well-known key.
`,
		Example: "  caisson trace export --format atif -o trajectory.json ses_01JD",
		RunE: func(_ *cobra.Command, args []string) error {
			write, ok := map[string]func(io.Writer, trace.Session) (trace.Overview, error){
				"jsonl": trace.Lines, "json": trace.JSON, "atif": trace.ATIF,
			}[f.Format]
			if !ok {
				return newUsageError("there is no format %q; there are jsonl, json and atif", f.Format)
			}
			return exportTrace(a, args[0], f.Output, write)
		},
	}, &f, usesConfig|usesInput, statuses{exitFailed: "it can't be written"})
}

// exportTrace writes a session to a file or standard output, without secrets.
func exportTrace(a *app, name, path string, write func(io.Writer, trace.Session) (trace.Overview, error)) error {
	s, err := traceSession(a.environ, name)
	if err != nil {
		return err
	}
	f, err := openOutput(path, "-o", "export")
	if err != nil {
		return err
	}
	var out io.Writer = f
	if path == "" {
		out = a.stdout
	}
	safe := redact.New(knownSecrets(a)).NewWriter(out)
	over, err := write(safe, s)
	if err = errors.Join(err, safe.Close()); err != nil { // readers would take a part for the whole
		err = errors.Join(err, f.Empty())
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if over.Damage != "" {
		reportDamage(a, over)
	}
	if safe.Changed() {
		a.warn("keys that are in these records were left out of the export; their hash chain doesn't hold in it")
	}
	return nil
}

// knownSecrets returns the keys that the environment and the configuration have.
func knownSecrets(a *app) []redact.Secret {
	s, _ := loadSettings(a, config.File{}, "") // empty if the configuration can't be read
	var models []config.SelectedModel
	for _, m := range s.conf.Models {
		models = append(models, config.SelectedModel{KeyEnv: valueOf(m.APIKeyEnv)})
	}
	return s.knownSecrets(models...)
}

func newTraceHTMLCommand(a *app) *cobra.Command {
	var f struct {
		Output string `flag:"output,o" doc:"file to write (default: standard output)"`
	}
	return newCommand(&cobra.Command{
		Use: "html [flags] SESSION", Short: "Write a session as one HTML page", Args: oneSession,
		Long: `Write a session as one HTML page, with a timeline of turns, model calls, tool calls, waits for
answers and the sandbox. The page shows questions, refusals and changes, what terminals showed, and
all messages with inputs, results and diffs.

The page is one file. It loads nothing and runs no script, and its policy forbids both. It shows the
output of tools as plain text, and the Markdown of models without links and pictures.
`,
		Example: "  caisson trace html -o session.html ses_01JD",
		RunE:    func(_ *cobra.Command, args []string) error { return exportTrace(a, args[0], f.Output, trace.HTML) },
	}, &f, usesConfig|usesInput, statuses{exitFailed: "it can't be written"})
}

func newTraceVerifyCommand(a *app) *cobra.Command {
	var f struct {
		All         bool   `flag:"all" doc:"every session of this user"`
		JSON        bool   `flag:"json" doc:"write a JSON array"`
		Attestation string `flag:"attestation" doc:"also verify that this file attests the session; needs --public-key"`
		PublicKey   string `flag:"public-key" doc:"PEM file with the public key of --attestation"`
	}
	return newCommand(&cobra.Command{
		Use: "verify [flags] SESSION | --all", Short: "Verify that records were not changed",
		Long: `Verify that a session's records are as they were written: seq has no gaps, and each record has the
hash of the one before. Long values in files must have the hashes that their records name, and so must
the requests of commands in egress.jsonl, whose hash is in session.ended.

The chain can't show that records are missing at the end: a session without session.ended is reported
as cut short, which can also be the result of a kill. Nor can it show that someone forged a whole chain:
keep the hash of the last record elsewhere, and compare, or sign it with caisson trace attest.
`,
		Example: "  caisson trace verify ses_01JD\n  caisson trace verify --all --json | jq '.[] | select(.ok|not)'\n  caisson trace verify --attestation session.intoto.json --public-key caisson.pub ses_01JD",
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case f.All && len(args) > 0:
				return newUsageError("a session or --all, not both")
			case (f.Attestation == "") != (f.PublicKey == ""):
				return newUsageError("--attestation and --public-key belong together")
			case f.Attestation != "" && (f.All || f.JSON):
				return newUsageError("--attestation is for one session, without --all and --json")
			}
			if f.All {
				state, err := findState(a.environ)
				if err != nil {
					return err
				}
				list, err := trace.All(state)
				if err != nil {
					return err
				}
				return verifySessions(a, list, f.JSON)
			}
			if err := oneSession(cmd, args); err != nil {
				return err
			}
			s, err := traceSession(a.environ, args[0])
			if err != nil {
				return err
			}
			if f.Attestation != "" {
				return verifyAttestation(a, s, f.Attestation, f.PublicKey)
			}
			return verifySessions(a, []trace.Session{s}, f.JSON)
		},
	}, &f, usesConfig|usesInput, statuses{exitFailed: "records were changed, are missing or can't be read"})
}

func verifySessions(a *app, list []trace.Session, asJSON bool) error {
	status := exitDone
	verdicts := []trace.Verdict{}
	for _, s := range list {
		v, err := trace.Verify(s)
		if err != nil && len(list) == 1 {
			return err
		}
		if err != nil {
			v.Damage = describeError(err).Cause
		}
		if !v.OK {
			status = exitFailed
		}
		verdicts = append(verdicts, v)
	}
	return cmp.Or(a.show(asJSON, verdicts, func(p *page) {
		for _, v := range verdicts {
			p.line("%s", verdictText(v))
		}
	}), exitWith(status))
}

func verdictText(v trace.Verdict) string {
	text := fmt.Sprintf("%s  ok: %d records", v.Session, v.Records)
	if !v.OK {
		text = fmt.Sprintf("%s  CHANGED: %s (%d good records before)", v.Session, trimPoint(v.Damage), v.Records)
	}
	if v.Omitted > 0 {
		text += fmt.Sprintf(", %d removed after their time", v.Omitted)
	}
	switch {
	case !v.OK:
	case v.Live:
		text += "; it runs"
	case !v.Ended:
		text += "; cut short: no session.ended, as after a kill"
	}
	if v.Torn {
		text += "; the last line is not whole"
	}
	if v.OK && v.Records > 0 {
		text += "; last " + v.Hash
	}
	return text
}
