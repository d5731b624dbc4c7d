package cache

// checkOwner does nothing: the directories of users are their own.
func checkOwner(string) error { return nil }
