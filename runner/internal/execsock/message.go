package execsock

// Request is what to run.
//
//	{"argv":["sh","-c","ls"],"dir":"/workspace/sub","stdin":true,"timeout_ms":60000}
type Request struct {
	// Argv is the program and its arguments, as bytes: they need not be UTF-8.
	Argv [][]byte `json:"argv"`
	// Dir is a folder in the container; "" is the workspace.
	Dir string `json:"dir,omitempty"`
	// Stdin says that standard input will come.
	Stdin bool `json:"stdin,omitempty"`
	// TimeoutMS is zero for the session's own.
	TimeoutMS int64 `json:"timeout_ms,omitempty"`
	// PID is the asking process as the kernel says; it is not sent.
	PID int32 `json:"-"`
}

// Result is how the command ended, or why it was not run.
type Result struct {
	Code      int  `json:"code"` // -1 where Signal is set
	Signal    int  `json:"signal,omitempty"`
	TimedOut  bool `json:"timed_out,omitempty"`
	Cancelled bool `json:"cancelled,omitempty"`
	OOMKilled bool `json:"oom_killed,omitempty"`
	// Killed is the number of processes that had to be killed, Left of those
	// that could not be.
	Killed int `json:"killed,omitempty"`
	Left   int `json:"left,omitempty"`
	// Failure is set where there is no end of a command.
	Failure *Failure `json:"failure,omitempty"`
}

// Failure says why there is no result: cause, mend and exit status.
type Failure struct {
	Status int    `json:"status"`
	Cause  string `json:"cause"`
	Mend   string `json:"mend"`
}
