package pacing

// Signal wakes the goroutine that waits for a channel with room for one signal, or will. It waits for
// nothing: a signal that waits already is enough.
func Signal[T any](c chan<- T) {
	var signal T
	select {
	case c <- signal:
	default:
	}
}
