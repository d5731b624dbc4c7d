package ci

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/caisson-run/caisson/cmd/caisson/internal/junit"
	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/runner"
	"github.com/caisson-run/caisson/runner/changes"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/tools"
)

// maxAnnotations bounds the errors of a report, and its warnings. GitHub shows no more
// of a step.
const maxAnnotations = 10

const maxProperty = 500

// GitHub reports a run to GitHub Actions: by annotations, a summary and outputs. It
// escapes texts of models, programs and files.
type GitHub struct {
	// Guard is standard error's. Without one there are no annotations.
	Guard *Guard
	// SummaryFile and OutputFile are the files that the runner reads, or "".
	SummaryFile, OutputFile string
	// Repository is the directory to which annotations are relative. Workspace is the
	// run's, and Target its path in the sandbox.
	Repository, Workspace, Target string
	// Patch is a file with the changes, or "".
	Patch string
}

// NewGitHub returns a reporter for the environment.
func NewGitHub(getenv func(string) string, g *Guard) *GitHub {
	return &GitHub{Guard: g, SummaryFile: getenv("GITHUB_STEP_SUMMARY"), OutputFile: getenv("GITHUB_OUTPUT"), Repository: getenv("GITHUB_WORKSPACE")}
}

// Report reports a run that has ended.
func (g *GitHub) Report(r runner.Report) error {
	var failures []junit.Failure
	if r.Verification != nil && !r.Verification.Passed {
		failures = junit.ReadFailures(r.VerifyFiles, 1000)
	}
	annotations := g.errorsOf(r, failures)
	annotations = append(annotations, g.warningsOf(r)...)
	if g.Guard != nil {
		g.Guard.RunCommands(annotations)
	}
	return errors.Join(
		appendFile(g.SummaryFile, maxSummary, func(room int) string { return renderSummary(r, len(failures), room) }),
		g.writeOutputs(r.ExitStatus, string(r.Reason), r.Session, r.CostUSD),
	)
}

// ReportError reports a run that could not begin.
func (g *GitHub) ReportError(status int, p record.Problem) error {
	if g.Guard != nil {
		g.Guard.RunCommands([]string{formatAnnotation("error", "", 0, "caisson run", p.Cause+"\n"+p.Hint)})
	}
	r := runner.Report{SessionEnded: record.SessionEnded{ExitStatus: status, Problem: &p, CostUSD: "unknown"}}
	return errors.Join(
		appendFile(g.SummaryFile, maxSummary, func(room int) string { return renderSummary(r, 0, room) }),
		g.writeOutputs(status, "not_started", "", "unknown"),
	)
}

// errorsOf returns the annotations for failures: first the run's own, then failed
// tests.
func (g *GitHub) errorsOf(r runner.Report, failures []junit.Failure) []string {
	var all []string
	for _, q := range r.Quarantined {
		if q.To == "" {
			all = append(all, formatAnnotation("error", "", 0, "not renamed", q.String()))
		}
	}
	if r.Problem != nil {
		title := "caisson run: " + string(r.Reason)
		if r.Reason == loop.StopAnswered {
			title = fmt.Sprintf("caisson run: exit status %d", r.ExitStatus)
		}
		all = append(all, formatAnnotation("error", "", 0, title, r.Problem.Cause+"\n"+r.Problem.Hint))
	}
	for _, f := range failures {
		message := f.Message
		file := g.findFile(f, r.Changed)
		if file == "" && f.File != "" {
			message = fmt.Sprintf("%s:%d: %s", f.File, f.Line, message)
		}
		all = append(all, formatAnnotation("error", file, f.Line, strings.Trim(f.Class+" "+f.Name, " "), message))
	}
	return firstAnnotations("error", all)
}

// warningsOf returns the annotations for files to read first.
func (g *GitHub) warningsOf(r runner.Report) []string {
	var all []string
	for _, group := range changes.GroupHostExecuted(r.HostExecuted) {
		all = append(all, formatAnnotation("warning", g.repositoryPath(group.Files[0].Path), 0, "read this first", group.String()))
	}
	return firstAnnotations("warning", all)
}

// firstAnnotations returns as many as GitHub shows. The last one counts the rest.
func firstAnnotations(level string, all []string) []string {
	if over := len(all) - maxAnnotations; over > 0 {
		all = append(all[:maxAnnotations-1], formatAnnotation(level, "", 0, "caisson run", fmt.Sprintf("and %d more, in the summary or the report", over+1)))
	}
	return all
}

// findFile returns the path in the repository of a failure's file, or "" if it is not
// certain.
func (g *GitHub) findFile(f junit.Failure, changed []record.Changed) string {
	if f.File == "" || len(f.File) > maxProperty || hasHidden(f.File) {
		return ""
	}
	name := strings.TrimPrefix(f.File, strings.TrimSuffix(g.Target, "/")+"/")
	name = strings.TrimPrefix(name, strings.TrimSuffix(g.Workspace, "/")+"/")
	root, err := os.OpenRoot(g.Workspace)
	if err != nil {
		return ""
	}
	defer func() { _ = root.Close() }() // only read
	exists := func(name string) bool {
		if !filepath.IsLocal(name) {
			return false
		}
		info, err := root.Lstat(name)
		return err == nil && info.Mode().IsRegular() || slices.ContainsFunc(changed, func(c record.Changed) bool { return c.Path == name })
	}
	// Go names a package's file without its directory, which ends the class.
	for class := f.Class; class != ""; {
		if name := path.Join(class, name); exists(name) {
			return g.repositoryPath(name)
		}
		_, class, _ = strings.Cut(class, "/")
	}
	if name = path.Clean(name); exists(name) {
		return g.repositoryPath(name)
	}
	return ""
}

// repositoryPath returns the path in the repository of a file of the workspace, or "".
func (g *GitHub) repositoryPath(name string) string {
	if g.Repository == "" || len(name) > maxProperty || hasHidden(name) || !filepath.IsLocal(name) {
		return ""
	}
	at, err := filepath.Rel(g.Repository, filepath.Join(g.Workspace, name))
	if err != nil || !filepath.IsLocal(at) {
		return ""
	}
	return at
}

func hasHidden(name string) bool {
	safe, _ := tools.Display(name)
	return safe != name
}

// formatAnnotation returns a workflow command that annotates a file or the run.
func formatAnnotation(level, file string, line int, title, message string) string {
	properties := []string{"title=" + escapeProperty(title)}
	if file != "" {
		properties = append(properties, "file="+escapeProperty(file))
		if line > 0 {
			properties = append(properties, "line="+strconv.Itoa(line))
		}
	}
	return "::" + level + " " + strings.Join(properties, ",") + "::" + escapeData(message)
}

var (
	dataEscapes     = strings.NewReplacer("%", "%25", "\r", "%0D", "\n", "%0A")
	propertyEscapes = strings.NewReplacer("%", "%25", "\r", "%0D", "\n", "%0A", ":", "%3A", ",", "%2C")
)

func escapeData(text string) string {
	safe, _ := tools.DisplayLines(tools.Elide(strings.TrimSpace(text), 4<<10))
	s := scanner{inLine: true, wrote: true} // "::" is text in data, and "##[" must be
	escaped, _ := s.escapeText([]byte(safe), false)
	return dataEscapes.Replace(string(escaped))
}

func escapeProperty(text string) string {
	safe, _ := tools.Display(tools.Elide(text, maxProperty))
	s := scanner{inLine: true, wrote: true}
	escaped, _ := s.escapeText([]byte(safe), false)
	return propertyEscapes.Replace(string(escaped))
}

func (g *GitHub) writeOutputs(status int, reason, session, cost string) error {
	return appendFile(g.OutputFile, maxSummary, func(int) string {
		var b strings.Builder
		for _, o := range [][2]string{{"status", strconv.Itoa(status)}, {"reason", reason}, {"patch", g.Patch}, {"session", session}, {"cost", cost}} {
			var token [16]byte
			_, _ = rand.Read(token[:])
			end := "caisson_" + hex.EncodeToString(token[:])
			fmt.Fprintf(&b, "\n%s<<%s\n%s\n%s\n", o[0], end, o[1], end)
		}
		return b.String()
	})
}

// appendFile appends a text to a file of the runner of at most most bytes. render gets
// the number of bytes left.
func appendFile(name string, most int, render func(room int) string) error {
	if name == "" {
		return nil
	}
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return fmt.Errorf("write file of the runner: %w", err)
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = errors.New(name + " is no regular file")
	}
	if err == nil {
		_, err = f.WriteString(render(max(most-int(info.Size()), 0)))
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("write file of the runner: %w", err)
	}
	return nil
}
