// Package junit writes the report of a run as JUnit XML, and reads failures from other
// programs' reports. There is no standard. The report is valid by Jenkins's schema
// (xunit-plugin, junit-10.xsd), and suits GitLab, which shows classname, name and the
// text of a failure, and takes one failure of each test.
package junit

import (
	"cmp"
	"encoding/xml"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/runner"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/tools"
)

// maxText bounds a text of a report in bytes, before escaping.
const maxText = 64 << 10

// className is the class of all written tests.
const className = "caisson.run"

// Checks says which checks a run had to make.
type Checks struct{ Format, Verify, Replay bool }

type testSuites struct {
	XMLName  xml.Name  `xml:"testsuites"`
	Tests    int       `xml:"tests,attr"`
	Failures int       `xml:"failures,attr"`
	Errors   int       `xml:"errors,attr"`
	Time     string    `xml:"time,attr"`
	Suite    testSuite `xml:"testsuite"`
}

type testSuite struct {
	Name       string     `xml:"name,attr"`
	Tests      int        `xml:"tests,attr"`
	Failures   int        `xml:"failures,attr"`
	Errors     int        `xml:"errors,attr"`
	Skipped    int        `xml:"skipped,attr"`
	Time       string     `xml:"time,attr"`
	Timestamp  string     `xml:"timestamp,attr"`
	Properties []property `xml:"properties>property"`
	Cases      []testCase `xml:"testcase"`
}

type property struct {
	Name  string `xml:"name,attr"`
	Value string `xml:"value,attr"`
}

type testCase struct {
	Class   string   `xml:"classname,attr"`
	Name    string   `xml:"name,attr"`
	Time    string   `xml:"time,attr"`
	Skipped *problem `xml:"skipped"`
	Error   *problem `xml:"error"`
	Failure *problem `xml:"failure"`
	Output  string   `xml:"system-out,omitempty"`
}

type problem struct {
	Type    string `xml:"type,attr,omitempty"`
	Message string `xml:"message,attr,omitempty"`
	Text    string `xml:",chardata"`
}

// Write writes the report of a run that has ended: a test for the task and one for each
// check. Checks that did not run are skipped.
func Write(w io.Writer, r runner.Report, checks Checks, now time.Time) error {
	cases := []testCase{taskCase(r)}
	answered := r.Reason == loop.StopAnswered
	if checks.Format {
		cases = append(cases, formatCase(r, answered))
	}
	if checks.Verify {
		cases = append(cases, verifyCase(r))
	}
	if checks.Replay {
		cases = append(cases, replayCase(r))
	}
	wall := time.Duration(r.WallMS) * time.Millisecond
	return writeSuite(w, cases, wall, now, []property{
		{"session", r.Session},
		{"stop_reason", string(r.Reason)},
		{"exit_status", strconv.Itoa(r.ExitStatus)},
		{"cost_usd", r.CostUSD},
		{"input_tokens", strconv.FormatInt(r.Usage.InputTokens+r.Usage.CachedInputTokens+r.Usage.CacheWriteTokens, 10)},
		{"output_tokens", strconv.FormatInt(r.Usage.OutputTokens, 10)},
	})
}

// WriteError writes the report of a run that could not begin.
func WriteError(w io.Writer, p record.Problem, now time.Time) error {
	c := newCase("task", 0)
	c.Error = newProblem("not_started", p.Cause, p.Cause+"\n"+p.Hint)
	return writeSuite(w, []testCase{c}, 0, now, nil)
}

func writeSuite(w io.Writer, cases []testCase, wall time.Duration, now time.Time, properties []property) error {
	s := testSuite{Name: "caisson run", Tests: len(cases), Time: formatSeconds(wall), Timestamp: now.UTC().Format("2006-01-02T15:04:05"), Properties: properties, Cases: cases}
	for _, c := range cases {
		switch {
		case c.Error != nil:
			s.Errors++
		case c.Failure != nil:
			s.Failures++
		case c.Skipped != nil:
			s.Skipped++
		}
	}
	text, err := xml.MarshalIndent(testSuites{Tests: s.Tests, Failures: s.Failures, Errors: s.Errors, Time: s.Time, Suite: s}, "", "  ")
	if err == nil {
		_, err = fmt.Fprintf(w, "%s%s\n", xml.Header, text)
	}
	if err != nil {
		return fmt.Errorf("write JUnit report: %w", err)
	}
	return nil
}

// taskCase returns the test of the task. It is an error unless the model answered and
// only checks failed.
func taskCase(r runner.Report) testCase {
	wall := r.WallMS
	if r.Verification != nil {
		wall = max(wall-r.Verification.WallMS, 0)
	}
	c := newCase("task", wall)
	c.Output = safeText(r.Answer)
	switch r.ExitStatus {
	case runner.OutcomeDone, runner.OutcomeFormat, runner.OutcomeUnverified:
		return c
	}
	if r.ReplayFailed && r.Reason == loop.StopAnswered {
		return c
	}
	var p record.Problem
	if r.Problem != nil {
		p = *r.Problem
	}
	c.Error = newProblem(string(r.Reason), cmp.Or(p.Cause, fmt.Sprintf("exit status %d", r.ExitStatus)), p.Cause+"\n"+p.Hint)
	return c
}

func formatCase(r runner.Report, answered bool) testCase {
	c := newCase("output schema", 0)
	switch {
	case !answered:
		c.Skipped = newProblem("", "there is no answer", "")
	case len(r.AnswerProblems) > 0:
		c.Failure = newProblem("schema", r.AnswerProblems[0], strings.Join(r.AnswerProblems, "\n"))
	}
	return c
}

func verifyCase(r runner.Report) testCase {
	v := r.Verification
	if v == nil {
		c := newCase("verify", 0)
		c.Skipped = newProblem("", "there is no result to verify", "")
		return c
	}
	c := newCase("verify", v.WallMS)
	c.Output = safeText(v.Output)
	switch {
	case v.Error != "":
		c.Error = newProblem("not_run", v.Error, v.Error)
	case !v.Passed:
		c.Failure = newProblem("verify", v.Command+": "+v.String(), v.Command+": "+v.String()+"\n"+v.Output)
	}
	return c
}

func replayCase(r runner.Report) testCase {
	c := newCase("replay", 0)
	var lines []string
	for _, d := range r.Differences[:min(len(r.Differences), record.MaxListed)] {
		lines = append(lines, d.String())
	}
	if more := len(r.Differences) - len(lines); more > 0 {
		lines = append(lines, fmt.Sprintf("and %d more, in report.json", more))
	}
	switch text := strings.Join(lines, "\n"); {
	case r.ReplayFailed:
		c.Failure = newProblem("difference", lines[0], text)
	default:
		c.Output = safeText(text)
	}
	return c
}

func newCase(name string, ms int64) testCase {
	return testCase{Class: className, Name: name, Time: formatSeconds(time.Duration(ms) * time.Millisecond)}
}

func newProblem(kind, message, text string) *problem {
	const maxMessage = 1000
	line, _ := tools.Display(tools.Elide(message, maxMessage))
	return &problem{Type: kind, Message: line, Text: safeText(text)}
}

// safeText shortens foreign text and makes it safe to show and valid in XML.
func safeText(text string) string {
	safe, _ := tools.DisplayLines(tools.Elide(strings.ReplaceAll(text, "\r\n", "\n"), maxText))
	return strings.TrimRight(safe, "\n")
}

// formatSeconds returns a time as the schema's SUREFIRE_TIME.
func formatSeconds(d time.Duration) string { return strconv.FormatFloat(d.Seconds(), 'f', 3, 64) }
