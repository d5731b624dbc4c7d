package limits

import (
	"fmt"
	"time"
)

// Kind names a limit, in errors, records and reports.
type Kind string

// The limits of runs and sandboxes, with the unit of [ExceededError].Limit and Used.
const (
	KindRounds    Kind = "rounds"     // count
	KindToolCalls Kind = "tool_calls" // count
	KindTokens    Kind = "tokens"     // count
	KindCost      Kind = "cost_usd"   // millionths of a US dollar
	KindWallTime  Kind = "wall_time"  // milliseconds
	KindContext   Kind = "context"    // tokens
	KindRequests  Kind = "requests"   // count
	KindMemory    Kind = "memory"     // bytes
	KindPIDs      Kind = "pids"       // count
	KindDisk      Kind = "disk"       // free bytes or files: Limit is the required minimum, Used the current value; see ExceededError.Dir
)

// ExceededError is the error of an operation that a limit ended. A command's timeout is
// not one: it is part of the command's exit.
type ExceededError struct {
	Kind Kind `json:"kind"`
	// Limit and Used (the use at that time) are in the unit of Kind.
	Limit int64 `json:"limit"`
	Used  int64 `json:"used"`
	// Needed is the least that the refused operation needs, if Used is below Limit.
	Needed int64 `json:"needed,omitempty"`
	// Reserved is the part of Used that is reserved for running requests.
	Reserved int64 `json:"reserved,omitempty"`
	// Files means that Limit and Used of [KindDisk] count files (inodes), not bytes.
	Files bool `json:"-"`
	// Dir is the sandbox directory that exceeded its bound, such as the home, for
	// [KindDisk]. Limit and Used are then that bound and the use. "" means the host's
	// file system.
	Dir string `json:"-"`
	// Job means that Limit is the limit of the container job around Caisson, which the
	// sandbox shares with Caisson and everything else in the job.
	Job bool `json:"-"`
	// Period is a ceiling's period, "" for other limits; Until is its end. Profile is
	// the model that the ceiling is for; "" means all.
	Period  Period     `json:"period,omitempty"`
	Until   *time.Time `json:"until,omitempty"`
	Profile string     `json:"profile,omitempty"`
}

func (e *ExceededError) Error() string {
	if e.Kind == KindDisk {
		return e.diskText()
	}
	what := string(e.Kind)
	if e.Job {
		what += " of the job"
	}
	if e.Period != "" {
		what += " per " + string(e.Period)
	}
	if e.Profile != "" {
		what += " of model " + e.Profile
	}
	text := fmt.Sprintf("limit %s reached: used %d of %d", what, e.Used, e.Limit)
	if e.Needed > 0 {
		text += fmt.Sprintf(", and the next request needs up to %d", e.Needed)
	}
	return text
}

func (e *ExceededError) diskText() string {
	switch {
	case e.Dir != "" && e.Files:
		return fmt.Sprintf("%s holds more than %d files, or directories deeper than any build needs", e.Dir, e.Limit)
	case e.Dir != "":
		return fmt.Sprintf("%s holds more than %d MiB", e.Dir, e.Limit>>20)
	case e.Files:
		return fmt.Sprintf("the disk that the workspace is on has room for less than %d more files (inodes), which the host keeps", e.Limit)
	}
	return fmt.Sprintf("the disk that the workspace is on has less than %d MiB left, which the host keeps", e.Limit>>20)
}
