// Package doctor checks whether a machine can run sessions: its kernel, the
// backends, the image, the policy, the directories for state and images, and a
// sandbox that it starts.
//
// The checks ask no model and fetch nothing. A [Finding] has a hint if that
// needs no flags and commands of a program. Otherwise it has an [Advice], or
// the check's error, which the program puts into words.
package doctor

import (
	"fmt"
	"time"
)

// Result is the result of a check.
type Result string

// The results. Absent means missing, but not needed.
const (
	OK      Result = "ok"
	Warning Result = "warning"
	Failed  Result = "failed"
	Absent  Result = "absent"
)

// Finding is the result of one check.
type Finding struct {
	Check  string `json:"check"`
	Result Result `json:"result"`
	Detail string `json:"detail"`
	Hint   string `json:"hint,omitempty"`

	// Advice is the kind of a hint that depends on the program, or "". Subject
	// is the name, path or reference that it is about.
	Advice  Advice `json:"-"`
	Subject string `json:"-"`
	// Fault is the part to blame for a failure.
	Fault Fault `json:"-"`
	// Err is the check's error. Detail does not describe it.
	Err error `json:"-"`
}

// Fault is the part of a session to blame for a failure.
type Fault int

// The faults.
const (
	FaultNone Fault = iota
	FaultConfiguration
	FaultSandbox
)

// Advice is a kind of hint.
type Advice string

// The kinds of advice.
const (
	AdviseBackend         Advice = "use a backend of this machine"       // Subject: the missing backend
	AdviseOtherBackend    Advice = "choose another backend"              // Subject: the unsafe backend
	AdviseRuncUpdate      Advice = "update runc"                         // no Subject
	AdviseNamespaces      Advice = "allow user namespaces"               // no Subject
	AdviseOverlay         Advice = "load the overlay module"             // no Subject
	AdviseToolchains      Advice = "show more toolchains"                // Subject: their directories, one per line
	AdviseOtherImage      Advice = "use another image"                   // no Subject
	AdviseImage           Advice = "name an image that exists"           // no Subject
	AdvisePull            Advice = "fetch the image"                     // Subject: its reference
	AdvisePrune           Advice = "remove images"                       // no Subject
	AdviseListSandboxes   Advice = "list the sandboxes"                  // no Subject
	AdviseCollect         Advice = "remove what dead sandboxes left"     // no Subject
	AdviseCollectLater    Advice = "remove this sandbox later"           // no Subject
	AdviseTrustAgain      Advice = "trust the workspaces again"          // Subject: the damaged file's copy
	AdviseUntrust         Advice = "forget a trusted workspace"          // Subject: its path
	AdviseRevokeTool      Advice = "revoke the approvals of a tool"      // Subject: its name
	AdviseRevoke          Advice = "revoke an approval"                  // no Subject
	AdviseRevokeDenied    Advice = "change the policy or revoke"         // no Subject
	AdviseRevokeDirectory Advice = "revoke the approvals of a workspace" // Subject: its path
)

func failed(check string, err error) Finding {
	return Finding{Check: check, Result: Failed, Err: err}
}

// FormatAge returns the time since an event in its largest unit.
func FormatAge(since, now time.Time) string {
	d := now.Sub(since)
	switch {
	case since.IsZero():
		return "-"
	case d < 0:
		return "0s" // the clock was set back
	case d < 2*time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < 2*time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	}
	return fmt.Sprintf("%dd", int(d.Hours()/24))
}
