package record

import "slices"

// AuditKinds are the kinds that answer who did what, on whose word, and in
// which sandbox. Retention keeps their records, see [Prune]. A record of such
// a kind that can't be stored ends the session, as any other: nothing is
// written or executed after it.
func AuditKinds() []Kind {
	return []Kind{
		KindSessionCreated, KindSessionResumed, KindSessionEnded,
		KindSandboxStarted, KindSandboxLost, KindSandboxRestarted,
		KindUserCommandStarted, KindUserCommandEnded,
		KindConfirmationRequested, KindConfirmationResolved, KindConfirmationAttempted,
		KindMCPServerStarted, KindMCPServerFailed, KindMCPServerStopped, KindMCPToolsChanged, KindMCPRequestRefused,
		KindNetworkOpened, KindNetworkClosed, KindNetworkDenied,
	}
}

// IsAudited reports whether records of a kind are audit records.
func IsAudited(k Kind) bool { return slices.Contains(AuditKinds(), k) }

// AuditFile is the name of a trace that retention has shortened: the records of [AuditKinds],
// their lines as they were, and an [Omission] for each run of others.
const AuditFile = "audit.jsonl"
