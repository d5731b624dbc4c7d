package loop

// StopReason is the reason why a turn ended. Each has an exit status (see
// docs/exit-status.md).
type StopReason string

// The stop reasons.
const (
	StopAnswered        StopReason = "answered"         // 0
	StopProviderFailed  StopReason = "provider_failed"  // 1
	StopStuck           StopReason = "stuck"            // 1
	StopAuth            StopReason = "auth"             // 41
	StopSandboxStart    StopReason = "sandbox_start"    // 44
	StopSandboxLost     StopReason = "sandbox_lost"     // 45
	StopLimit           StopReason = "limit"            // 53
	StopTraceUnwritable StopReason = "trace_unwritable" // 54
	StopNoApprover      StopReason = "no_approver"      // 56
	StopCancelled       StopReason = "cancelled"        // 130, 143
)
