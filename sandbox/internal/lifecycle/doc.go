// Package lifecycle creates, watches and removes sandboxes for every engine and
// runtime. It contains the one order of steps. A [Driver] and its [Container]
// contain the parts that differ between engines and runtimes.
//
//	validate    Backend.Create      the spec, then Driver.NewContainer
//	image       fetchImage          Container.FetchImage, or the store of images
//	admission   Semaphore.Acquire   waits for other starts and for memory
//	ownership   claimOwnership      Container.Plan, the cleanup list, the session's files
//	            Container.Begin     work that need not wait for the mounts
//	mounts      prepareMounts       the workspace's mounts; the image beside them
//	start       startContainer      Container.Create, then Container.Start
//	handshake   dialGuest           guest.Dial, while Container.Start runs
//	attest      attest              what the guest observes, then Container.Attest
//	service     startService        the service of the spec, until it is healthy
//	commit      markRunning         the sandbox is running, unless it was lost
//
// [Sandbox.Destroy] undoes every step but the first, even a partial one.
// Everything that outlives a process is added to the cleanup list before it is
// made, so that another process's [Backend.Sweep] can undo it.
//
// The guest's connection is watched from the handshake on. If it ends, the
// sandbox is lost; [Container.ExplainLoss] adds the cause.
package lifecycle
