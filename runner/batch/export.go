package batch

import (
	"bufio"
	"cmp"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"strings"
	"time"
	"unicode/utf8"
)

// Prediction is a line of SWE-bench's predictions file.
type Prediction struct {
	InstanceID string `json:"instance_id"`
	Model      string `json:"model_name_or_path"`
	// Patch is a unified diff, "" if the agent changed nothing.
	Patch string `json:"model_patch"`
}

// WritePredictions writes the predictions of an agent's first attempts. It leaves out
// trials that the infrastructure failed, but not suspect ones, which have a patch.
func WritePredictions(w io.Writer, dir, agent string, results []Result) error {
	out := bufio.NewWriter(w)
	lines := json.NewEncoder(out)
	lines.SetEscapeHTML(false)
	for _, r := range results {
		if r.Agent != agent || r.Attempt != 1 || !r.Outcome.Judged() && r.Outcome != Suspect {
			continue
		}
		patch, err := readFile(filepath.Join(dir, TrialsDir, r.Key.Name()), PatchFile)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		p := Prediction{InstanceID: r.Task, Model: cmp.Or(r.Model, r.Agent), Patch: string(patch)}
		if err := lines.Encode(p); err != nil {
			return err
		}
	}
	return out.Flush()
}

type junitSuites struct {
	XMLName xml.Name     `xml:"testsuites"`
	Suites  []junitSuite `xml:"testsuite"`
}

type junitSuite struct {
	Name      string      `xml:"name,attr"`
	Tests     int         `xml:"tests,attr"`
	Failures  int         `xml:"failures,attr"`
	Errors    int         `xml:"errors,attr"`
	Skipped   int         `xml:"skipped,attr"`
	Time      string      `xml:"time,attr"`
	Timestamp string      `xml:"timestamp,attr,omitempty"`
	Cases     []junitCase `xml:"testcase"`
}

type junitCase struct {
	Name      string        `xml:"name,attr"`
	ClassName string        `xml:"classname,attr"`
	Time      string        `xml:"time,attr"`
	Skipped   *junitProblem `xml:"skipped"`
	Error     *junitProblem `xml:"error"`
	Failure   *junitProblem `xml:"failure"`
}

type junitProblem struct {
	Type    string `xml:"type,attr,omitempty"`
	Message string `xml:"message,attr"`
	Text    string `xml:",chardata"`
}

// WriteJUnit writes results as a JUnit report with a suite for each agent. Trials that
// did not pass are failures, suspect ones and those that the infrastructure failed are
// errors, and unsupported tasks are skipped.
func WriteJUnit(w io.Writer, s Spec, results []Result) error {
	var all junitSuites
	s = s.supportTried(results)
	for _, agent := range s.Agents {
		suite := junitSuite{Name: xmlText(agent), Timestamp: s.Created.UTC().Format("2006-01-02T15:04:05")}
		var total time.Duration
		for _, r := range results {
			if r.Agent == agent {
				suite.addResult(r)
				total += r.Finished.Sub(r.Started)
			}
		}
		for _, t := range s.Tasks {
			if len(t.Unsupported) > 0 {
				suite.Tests++
				suite.Skipped++
				suite.Cases = append(suite.Cases, junitCase{Name: xmlText(t.ID), ClassName: xmlText(agent), Time: "0.000", Skipped: &junitProblem{Message: xmlText(strings.Join(t.Unsupported, "; "))}})
			}
		}
		suite.Time = junitTime(total)
		all.Suites = append(all.Suites, suite)
	}
	text, err := xml.MarshalIndent(all, "", "  ")
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, "%s%s\n", xml.Header, text)
	return err
}

func (s *junitSuite) addResult(r Result) {
	c := junitCase{Name: xmlText(fmt.Sprintf("%s, attempt %d", r.Task, r.Attempt)), ClassName: xmlText(r.Agent), Time: junitTime(r.Finished.Sub(r.Started))}
	kind := cmp.Or(string(r.Class), string(r.Outcome))
	message := r.Cause
	if message == "" && r.Limit != "" {
		message = "the limit " + r.Limit + " ended the agent"
	}
	if message == "" && r.Reward != nil {
		message = fmt.Sprintf("reward %g", *r.Reward)
	}
	p := &junitProblem{Type: xmlText(kind), Message: xmlText(message), Text: xmlText(message)}
	s.Tests++
	switch r.Outcome {
	case Passed:
	case Infrastructure, Suspect:
		s.Errors++
		c.Error = p
	default:
		s.Failures++
		c.Failure = p
	}
	s.Cases = append(s.Cases, c)
}

func junitTime(d time.Duration) string { return fmt.Sprintf("%.3f", max(0, d.Seconds())) }

// xmlText replaces characters that XML 1.0 doesn't allow.
func xmlText(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\t', r == '\n', r == '\r', r >= ' ' && r != utf8.RuneError && r != 0xfffe && r != 0xffff:
			return r
		}
		return '�'
	}, s)
}
