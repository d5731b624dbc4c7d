package task

import (
	"bufio"
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
)

// maxLine bounds a line in bytes.
const maxLine = 4 << 20

// Line is a task as a line of JSON. Unknown keys are errors. Paths are relative to the
// file's directory. For example:
//
//	{"id":"fix-1","prompt":"Make the tests pass.","workspace":"./repo","verify":"make test"}
type Line struct {
	ID     string `json:"id"`
	Prompt string `json:"prompt"`
	// Workspace is a directory, a tar archive (.tar, .tar.gz, .tgz), or a repository as
	// git+URL@COMMIT with the commit's 40 digits. The agent works on a copy. "" means
	// an empty directory.
	Workspace string `json:"workspace,omitempty"`
	// Image is a reference as for run; "" means the batch's. Paths after build:,
	// rootfs:, oci-layout: and docker-archive: must be absolute.
	Image string `json:"image,omitempty"`
	// Verify is a shell command that passes with exit status 0, or {"tests": DIR} for a
	// directory with test.sh.
	Verify json.RawMessage `json:"verify,omitempty"`
	// Network is no-network (the default), public, or a list of hosts.
	Network  json.RawMessage `json:"network,omitempty"`
	Limits   LineLimits      `json:"limits,omitzero"`
	Metadata map[string]any  `json:"metadata,omitempty"`
}

// LineLimits bounds the trials of a [Line]. Zero means the batch's default.
type LineLimits struct {
	TimeoutSec       float64 `json:"timeout_sec,omitempty"`
	VerifyTimeoutSec float64 `json:"verify_timeout_sec,omitempty"`
	CPUs             float64 `json:"cpus,omitempty"`
	MemoryMB         int64   `json:"memory_mb,omitempty"`
	StorageMB        int64   `json:"storage_mb,omitempty"`
	MaxRounds        int64   `json:"max_rounds,omitempty"`
	MaxToolCalls     int64   `json:"max_tool_calls,omitempty"`
	MaxTokens        int64   `json:"max_tokens,omitempty"`
	MaxCostUSD       float64 `json:"max_cost_usd,omitempty"`
}

func loadLines(path string) ([]Task, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, &Error{path, err}
	}
	defer func() { _ = f.Close() }() // only read
	var list []Task
	in := bufio.NewScanner(f)
	in.Buffer(nil, maxLine)
	for n := 1; in.Scan(); n++ {
		text := bytes.TrimSpace(bytes.TrimPrefix(in.Bytes(), []byte("\ufeff"))) // Windows editors write it
		if len(text) == 0 {
			continue
		}
		source := fmt.Sprintf("%s:%d", path, n)
		t, err := parseLine(text, filepath.Dir(path))
		if err != nil {
			return nil, &Error{source, err}
		}
		t.Source = source
		list = append(list, t)
	}
	if err := in.Err(); err != nil {
		return nil, &Error{path, err}
	}
	if len(list) == 0 {
		return nil, &Error{path, errors.New("the file has no tasks")}
	}
	return list, nil
}

func parseLine(text []byte, dir string) (Task, error) {
	var l Line
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	switch err := d.Decode(&l); {
	case errors.Is(err, io.ErrUnexpectedEOF):
		return Task{}, errors.New("the line ends within a JSON value: want one object on each line")
	case err != nil:
		return Task{}, err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return Task{}, errors.New("more than one value")
	}
	switch {
	case l.ID == "":
		return Task{}, errors.New("id is missing")
	case strings.TrimSpace(l.Prompt) == "":
		return Task{}, errors.New("prompt is missing")
	}
	t := Task{ID: l.ID, Metadata: l.Metadata, Strategy: Mean}
	step := Step{Instruction: l.Prompt}
	var err error
	if t.Environment, err = l.newEnvironment(dir); err != nil {
		return t, err
	}
	if step.Agent, err = l.newAgent(t.Environment.Network); err != nil {
		return t, err
	}
	if step.Verifier, err = l.newVerifier(dir, t.Environment); err != nil {
		return t, err
	}
	t.Steps = []Step{step}
	t.Checksum, err = l.hashLine(text, t)
	return t, err
}

func (l Line) hashLine(text []byte, t Task) (string, error) {
	sum := sha256.New()
	sum.Write(text)
	for _, path := range []string{t.Environment.Workspace, t.Steps[0].Verifier.Tests} {
		if path == "" {
			continue
		}
		part, err := HashTree(path)
		if err != nil {
			return "", err
		}
		sum.Write([]byte(part))
	}
	return "sha256:" + hex.EncodeToString(sum.Sum(nil)), nil
}

var commit = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[0-9a-f]{40}$`) })

func (l Line) newEnvironment(dir string) (Environment, error) {
	e := Environment{Image: l.Image, MemoryBytes: l.Limits.MemoryMB << 20, StorageBytes: l.Limits.StorageMB << 20, BuildTime: defaultBuildTime}
	if l.Limits.MemoryMB < 0 || l.Limits.MemoryMB > 1<<30 || l.Limits.StorageMB < 0 || l.Limits.StorageMB > 1<<30 {
		return e, errors.New("limits: memory_mb and storage_mb can't be negative or so large")
	}
	if !(l.Limits.CPUs >= 0 && l.Limits.CPUs < 1e6) {
		return e, fmt.Errorf("limits: cpus is %v", l.Limits.CPUs)
	}
	e.MilliCPUs = int64(l.Limits.CPUs * 1000)
	if repository, ok := strings.CutPrefix(l.Workspace, "git+"); ok {
		at := strings.LastIndex(repository, "@")
		if at < 0 || !commit().MatchString(repository[at+1:]) || !strings.Contains(repository[:at], "://") {
			return e, fmt.Errorf("workspace %q: want git+URL@COMMIT with the 40 digits of a commit", l.Workspace)
		}
		e.Git = &Git{URL: repository[:at], Commit: repository[at+1:]}
	} else if l.Workspace != "" {
		e.Workspace = l.Workspace
		if !filepath.IsAbs(e.Workspace) {
			e.Workspace = filepath.Join(dir, e.Workspace)
		}
		if !isDir(e.Workspace) && !isFile(e.Workspace) {
			return e, fmt.Errorf("workspace %s: no such directory or archive", e.Workspace)
		}
	}
	var err error
	e.Network, err = l.parseLineNetwork()
	return e, err
}

func (l Line) parseLineNetwork() (Network, error) {
	if len(l.Network) == 0 {
		return Network{Mode: NoNetwork}, nil
	}
	var mode string
	if err := json.Unmarshal(l.Network, &mode); err == nil {
		if mode == string(AllowList) {
			return Network{}, errors.New("network: want a list of hosts in place of allowlist")
		}
		return parseNetwork("task", mode, nil)
	}
	var hosts []string
	if err := json.Unmarshal(l.Network, &hosts); err != nil {
		return Network{}, errors.New("network: want no-network, public, or a list of hosts")
	}
	return parseNetwork("task", string(AllowList), hosts)
}

func (l Line) newAgent(n Network) (Agent, error) {
	a := Agent{Network: n}
	var err error
	if a.Time, err = parseSeconds("limits.timeout_sec", &l.Limits.TimeoutSec, 0); err != nil {
		return a, err
	}
	for _, b := range []struct {
		n  int64
		to **int64
	}{
		{l.Limits.MaxRounds, &a.Budget.Rounds},
		{l.Limits.MaxToolCalls, &a.Budget.ToolCalls},
		{l.Limits.MaxTokens, &a.Budget.Tokens},
		{int64(math.Ceil(l.Limits.MaxCostUSD * 1e6)), &a.Budget.CostMicroUSD},
	} {
		if b.n != 0 {
			*b.to = &b.n
		}
	}
	if err := a.Budget.Validate(); err != nil {
		return a, fmt.Errorf("limits: %w", err)
	}
	return a, nil
}

func (l Line) newVerifier(dir string, e Environment) (Verifier, error) {
	v := Verifier{Network: e.Network, Environment: e}
	limit, err := parseSeconds("limits.verify_timeout_sec", &l.Limits.VerifyTimeoutSec, 0)
	if err != nil {
		return v, err
	}
	v.Time = cmp.Or(limit, defaultVerifierTime)
	if len(l.Verify) == 0 || json.Unmarshal(l.Verify, &v.Command) == nil {
		return v, nil
	}
	var tests struct {
		Tests string `json:"tests"`
	}
	d := json.NewDecoder(bytes.NewReader(l.Verify))
	d.DisallowUnknownFields()
	if err := d.Decode(&tests); err != nil || tests.Tests == "" {
		return v, errors.New(`verify: want a command, or {"tests": DIR}`)
	}
	v.Tests = tests.Tests
	if !filepath.IsAbs(v.Tests) {
		v.Tests = filepath.Join(dir, v.Tests)
	}
	if !isFile(filepath.Join(v.Tests, "test.sh")) {
		return v, fmt.Errorf("verify: %s has no test.sh", v.Tests)
	}
	return v, nil
}
