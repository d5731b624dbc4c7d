package rule

// Reasons of refusals and failures, as records and programs get them.
const (
	ReasonNotAllowed = "not_allowed" // no rule allows it, or one denies it
	ReasonAddress    = "address"     // the host is at an address that may not be dialled
	ReasonMethod     = "method"      // of HTTP
	ReasonPath       = "path"
	ReasonInvalidURL = "invalid_url"
	ReasonPort       = "port"
	ReasonScheme     = "scheme"
	ReasonUserinfo   = "userinfo" // credentials in a URL or authority

	ReasonAuthority       = "authority"        // Host differs from the target, is missing, or there are several
	ReasonInvalidRequest  = "invalid_request"  // of HTTP or SOCKS5, or one that servers read differently
	ReasonSNI             = "sni"              // the first message of TLS doesn't name the host
	ReasonNotTLS          = "not_tls"          // bytes other than TLS, where only TLS is allowed
	ReasonSecretMisplaced = "secret_misplaced" // the placeholder of a secret is where it must not be
	ReasonNotLocked       = "not_locked"       // the lock doesn't have the file
	ReasonDigest          = "digest"           // a file doesn't have the digest of its index
	ReasonUser            = "user"             // the connecting program's user is unknown
	ReasonIdentity        = "identity"         // the proxy belongs to another identity

	ReasonAskedDenied      = "asked_denied" // by a person, or there was no answer
	ReasonTooManyQuestions = "too_many_questions"
	ReasonTooManyNames     = "too_many_names"
	ReasonRecord           = "record" // the record of the connection could not be written

	ReasonResolve  = "resolve" // the name could not be resolved
	ReasonConnect  = "connect"
	ReasonTimeout  = "timeout"
	ReasonTLS      = "tls"      // the host's certificate can't be verified
	ReasonProtocol = "protocol" // the exchange with the host failed
)
